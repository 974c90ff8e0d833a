//go:build linux

// Package user looks up the users that cells and commands name.
package user

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// passwd is the user table of the sandbox, which may come from an image.
	passwd = "/etc/passwd"
	// maxPasswd bounds how much of it is read.
	maxPasswd = 1 << 20
	// maxID is the largest valid id; the next one means "no id" to the kernel.
	maxID = 1<<31 - 2
)

// User is a user inside the sandbox.
type User struct {
	UID, GID int
	Name     string // "" if the table has no such user
	Home     string // as Name
}

// Same reports whether u and v have the same user and group.
func (u User) Same(v User) bool { return u.UID == v.UID && u.GID == v.GID }

// IsRoot reports whether u is root or has the group of root.
func (u User) IsRoot() bool { return u.UID == 0 || u.GID == 0 }

// Dir returns the working directory of the user's programs.
func (u User) Dir() string {
	if u.Home != "" {
		return u.Home
	}
	return "/"
}

// Env returns the environment variables that identify the user, as KEY=VALUE.
func (u User) Env() []string {
	env := []string{"HOME=" + u.Dir()}
	if u.Name != "" {
		env = append(env, "USER="+u.Name, "LOGNAME="+u.Name)
	}
	return env
}

// Find returns the user that a text names: a uid, whose gid has the same number; uid:gid; or a name.
func Find(text string) (User, error) { return find(text, passwd) }

func find(text, table string) (User, error) {
	u := User{Name: text}
	first, second, both := strings.Cut(text, ":")
	if id, ok := parseID(first); ok {
		u = User{UID: id, GID: id}
		if both {
			if u.GID, ok = parseID(second); !ok {
				return User{}, fmt.Errorf("invalid group %q", second)
			}
		}
	}
	return lookUp(u, table)
}

func parseID(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n <= maxID && strconv.Itoa(n) == text
}

// lookUp completes a user from the table: by its name or, without a name, by its uid. Only a name must be in the table.
func lookUp(u User, table string) (User, error) {
	byName := u.Name != ""
	unknown := fmt.Errorf("user %q not found in the sandbox", u.Name)
	// The file may come from an image and be anything, for example a FIFO, on which an open would block.
	f, err := os.OpenFile(table, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		defer f.Close()
		var fi os.FileInfo
		if fi, err = f.Stat(); err == nil && !fi.Mode().IsRegular() {
			err = errors.New("not a regular file")
		}
	}
	switch {
	case err != nil && byName:
		return User{}, fmt.Errorf("%w: %w", unknown, err)
	case err != nil:
		return u, nil
	}
	for lines := bufio.NewScanner(io.LimitReader(f, maxPasswd)); lines.Scan(); {
		row := strings.Split(lines.Text(), ":")
		if len(row) < 6 {
			continue
		}
		uid, ok1 := parseID(row[2])
		gid, ok2 := parseID(row[3])
		switch {
		case !ok1 || !ok2:
		case byName && row[0] == u.Name:
			return User{UID: uid, GID: gid, Name: row[0], Home: row[5]}, nil
		case !byName && uid == u.UID:
			u.Name, u.Home = row[0], row[5]
			return u, nil
		}
	}
	if byName {
		return User{}, unknown
	}
	return u, nil
}
