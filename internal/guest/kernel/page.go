//go:build linux

package kernel

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Page is memory that the guest shares with an interpreter. The interpreter writes the number of a cell there when it
// reaches the first line of the cell. That costs no system call, and when the interpreter has died, the guest knows
// which cell was running.
type Page struct{ mem []byte }

// NewPage returns a new page, and the file through which an interpreter maps it.
func NewPage() (*Page, *os.File, error) {
	fd, err := unix.MemfdCreate("recluse-page", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("create a page: %w", err)
	}
	f := os.NewFile(uintptr(fd), "page")
	size := os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("create a page: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("map a page: %w", err)
	}
	return &Page{mem}, f, nil
}

// Begun returns the number of the last cell whose first line was reached.
//
// Preconditions: the interpreter no longer writes.
func (p *Page) Begun() uint32 { return binary.LittleEndian.Uint32(p.mem) }

// Close unmaps the memory.
func (p *Page) Close() error { return unix.Munmap(p.mem) }
