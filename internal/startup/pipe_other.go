//go:build !unix

package startup

import "os"

func output(f *os.File) *os.File { return f }
