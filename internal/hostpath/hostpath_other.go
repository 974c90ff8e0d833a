//go:build !linux

package hostpath

import (
	"os"
	"path/filepath"
)

// Judge resolves path and judges it. It returns the resolved path, or a *[RefusedError].
//
// On other systems than Linux there are no O_PATH handles, so the path may change after it was judged. No backend
// mounts directories there: the result is only advice.
func (p *Policy) Judge(path string) (string, error) {
	if err := checkSyntax(path); err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", missing(path, err)
	}
	info, err := os.Lstat(resolved)
	if err != nil {
		return "", missing(path, err)
	}
	if err := p.judge(path, resolved, info); err != nil {
		return "", err
	}
	return resolved, nil
}

// mountTable is empty on other systems than Linux. There, only names and inodes are compared.
type mountTable struct{}

func (p *Policy) mounts() (mountTable, error) { return mountTable{}, nil }

func (mountTable) judge(string, []tree, func(rule, format string, args ...any) error) error {
	return nil
}
