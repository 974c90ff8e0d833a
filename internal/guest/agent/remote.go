//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/internal/guest/launch"
)

// maxConfigLine bounds the configuration on the standard input.
const maxConfigLine = 1 << 20

// remote is the guest as a process of a service. The configuration comes by the standard input, because a service shows
// arguments and environments of its processes to others, and code inside can read them.
func remote() int {
	pipe := &hostPipe{}
	cfg, token, err := configFromInput(pipe)
	if err != nil {
		fmt.Fprintln(os.Stderr, "recluse-guest:", err)
		return 2
	}
	g := carrier.NewGuest(pipe, os.Stdout, token)
	fmt.Fprintln(os.Stderr, "recluse-guest:", run(cfg, token, pipe, g, g))
	return 1
}

// configFromInput reads the first line, and nothing after it. What only the sandbox knows is added: the home directory
// and the search path of its user.
func configFromInput(r io.Reader) (launch.Config, []byte, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := r.Read(b)
		if n == 1 && b[0] == '\n' {
			break
		}
		line = append(line, b[:n]...)
		if err == nil && len(line) > maxConfigLine {
			err = errors.New("the line is too long")
		}
		if err != nil {
			return launch.Config{}, nil, fmt.Errorf("read the configuration: %w", err)
		}
	}
	cfg, token, err := parseConfig(line)
	if err != nil {
		return cfg, nil, fmt.Errorf("read the configuration: %w", err)
	}
	home := os.Getenv("HOME")
	if cfg.Home == "" {
		cfg.Home = home
	}
	if cfg.Dir == "" {
		cfg.Dir = cfg.Home
	}
	hasPath := slices.ContainsFunc(cfg.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") })
	if path := os.Getenv("PATH"); path != "" && !hasPath {
		cfg.Env = append(cfg.Env, "PATH="+path)
	}
	return cfg, token, nil
}
