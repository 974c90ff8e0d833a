// Package vmtest provides tests with what virtual machines need: a small root file system, made from programs of this
// host, and a data directory in which the setup of the vm backend has run. Both are kept for the next run of the tests,
// with the kernel and the templates.
package vmtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/filelock"
)

// programs are what the root file system of the tests has of this host, besides Python.
var programs = strings.Fields(`bash sh ls cat echo sleep head tail grep sed id stat touch mkdir rm ps env seq sort wc tr
	setsid tty stty kill true false test dd uname nproc free chmod chown ln cp mv find xargs tee timeout mkfifo readlink
	df yes date printf basename dirname expr mktemp cut sha256sum md5sum base64 od cmp nice unshare mount getent pwd rmdir
	cksum tac rev nl paste split truncate shuf pgrep pkill awk tar gzip sync whoami who which arch hostname sysctl ln
	prlimit renice taskset ionice setpriv flock script mknod ulimit realpath comm join fold expand tsort numfmt chgrp
	install link unlink logname groups nohup pathchk printenv stdbuf sum tty users ip dmesg lsblk findmnt umount diff`)

// prepareWait is how long the download of a kernel and the making of the root may take.
const prepareWait = 5 * time.Minute

// own is the directory of the vm backend in a data directory.
const own = "vm"

// Prepare returns a data directory in which setup has run. It calls setup with that directory and that of a root file
// system.
func Prepare(setup func(ctx context.Context, data, root string) error) (data string, err error) {
	// Not in the cache directory: that of root is in its home, below which no root file system may be.
	dir := filepath.Join(os.TempDir(), "recluse-test-vm")
	data = filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), prepareWait)
	defer cancel()
	lock, err := filelock.Acquire(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Release()
	version := sha256.Sum256(fmt.Append(nil, programs, 2)) // and the version of fill
	root := filepath.Join(dir, "root-"+hex.EncodeToString(version[:6]))
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		temp := root + ".new"
		if err := errors.Join(os.RemoveAll(temp), fill(ctx, temp)); err != nil {
			return "", err
		}
		if err := os.Rename(temp, root); err != nil {
			return "", err
		}
	}
	return data, setup(ctx, data, root)
}

// Share makes the data directory dir use what the setup has made in the directory shared, and its templates. Sandboxes
// and snapshots are its own.
func Share(shared, dir string) error {
	shared, dir = filepath.Join(shared, own), filepath.Join(dir, own)
	for _, d := range []string{"sandboxes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	for _, d := range []string{"kernels", "images", "templates"} {
		if err := os.Symlink(filepath.Join(shared, d), filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	const setup = "setup.json"
	text, err := os.ReadFile(filepath.Join(shared, setup))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, setup), text, 0o600)
}

// fill makes a small system of this host's programs: the whole /usr would take minutes.
func fill(ctx context.Context, root string) error {
	copyFile := func(from, to string) error {
		in, err := os.Open(from)
		if err != nil {
			return err
		}
		defer in.Close()
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	}
	var files []string
	for _, name := range programs {
		path := "/usr/bin/" + name
		if _, err := os.Stat(path); err != nil {
			continue // tests that need it fail
		}
		files = append(files, path)
	}
	text, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))").Output()
	if err != nil {
		return err
	}
	library := strings.TrimSpace(string(text))
	files = append(files, "/usr/bin/python3")
	err = filepath.WalkDir(library, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{"test", "__pycache__", "idlelib", "lib2to3"}, d.Name()) {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range files {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // a broken link
		}
		if err := copyFile(real, root+path); err != nil {
			return err
		}
		libraries, _ := exec.CommandContext(ctx, "ldd", real).Output() // fails for scripts
		for word := range strings.FieldsSeq(string(libraries)) {
			if !strings.HasPrefix(word, "/") {
				continue
			}
			target := word
			if !strings.HasPrefix(word, "/usr/") {
				target = "/usr" + word
			}
			if _, err := os.Stat(root + target); err == nil {
				continue
			}
			if err := copyFile(word, root+target); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "usr/local/bin"), 0o755); err != nil {
		return err
	}
	for link, to := range map[string]string{"bin": "usr/bin", "sbin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{ //nolint:gosec // no password is in it
		"passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n", "group": "root:x:0:\nuser:x:1000:\n",
		"nsswitch.conf": "passwd: files\nhosts: files dns\n", "hosts": "127.0.0.1 localhost\n", "resolv.conf": "",
	} {
		path := filepath.Join(root, "etc", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}
