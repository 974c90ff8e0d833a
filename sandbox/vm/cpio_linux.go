package vm

import (
	"fmt"
	"io"
	"strings"
)

// archive writes a cpio archive in the format newc, which the kernel unpacks as the initramfs. Everything in it belongs
// to root.
type archive struct {
	w     io.Writer
	inode int
	err   error // the first error
}

// Types of files in the archive; see inode(7).
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
)

// add adds a file with its content; the content of a link is its target.
func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	links := 1
	if mode&typeDir != 0 && mode&typeFile == 0 {
		links = 2
	}
	head := "070701"
	for _, v := range []int{a.inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0} {
		head += fmt.Sprintf("%08x", v)
	}
	a.write(pad(head + name + "\x00"))
	a.write(string(content))
	a.write(strings.Repeat("\x00", -len(content)&3))
}

// close ends the archive.
func (a *archive) close() error {
	a.add("TRAILER!!!", 0, nil)
	return a.err
}

func (a *archive) write(text string) {
	if a.err == nil {
		_, a.err = io.WriteString(a.w, text)
	}
}

// pad fills up to a multiple of four bytes.
func pad(text string) string { return text + strings.Repeat("\x00", -len(text)&3) }
