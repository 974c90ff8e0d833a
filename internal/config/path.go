package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/recluse-dev/recluse/llm"
)

// paths returns the files that a key names, to be read or changed.
func (f field) paths(c *Config) []*string {
	var out []*string
	switch v := f.in(c).Addr().Interface().(type) {
	case *string:
		out = append(out, v)
	case *[]string:
		for i := range *v {
			out = append(out, &(*v)[i])
		}
	}
	return out
}

// split separates a file from the role before it.
func (f field) split(value string) (role, file string) {
	if f.tag.Get("path") != "role" {
		return "", value
	}
	if role, file, ok := strings.Cut(value, "="); ok {
		return role + "=", file
	}
	return "", value
}

// resolve makes the files that a key names absolute: a server that is started for a caller works elsewhere.
func (f field) resolve(c *Config, dir string) {
	if f.tag.Get("path") == "" {
		return
	}
	for _, p := range f.paths(c) {
		role, file := f.split(*p)
		if file == "" || filepath.IsAbs(file) {
			continue
		}
		if full, err := filepath.Abs(filepath.Join(dir, file)); err == nil {
			*p = role + full
		}
	}
}

// Environ returns the variables that name files, as a server must be given them.
func (c *Config) Environ() []string {
	var out []string
	for _, f := range all() {
		if f.tag.Get("path") != "" && c.sources[f.key].Variable != "" {
			out = append(out, f.variable()+"="+f.text(c))
		}
	}
	return out
}

// Fingerprint returns a hash of what a server reads when it starts: values, the files that they name, and the variables that models are found by. What
// the command line alone reads is not in it.
func (c *Config) Fingerprint() string {
	h := sha256.New()
	for _, f := range all() {
		if strings.HasPrefix(f.key, "client.") {
			continue
		}
		value := f.text(c)
		if s, ok := f.in(c).Interface().(Secret); ok {
			value = string(s)
		}
		fmt.Fprintf(h, "%s=%q\n", f.key, value)
		if kind := f.tag.Get("path"); kind == "" || kind == "out" {
			continue
		}
		for _, p := range f.paths(c) {
			_, file := f.split(*p)
			if info, err := os.Stat(file); err == nil { // else whoever reads it tells
				fmt.Fprintf(h, "%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	var models llm.Config
	if b, err := read(c.Models.Providers); err == nil {
		models, _ = llm.ReadConfig(bytes.NewReader(b)) // whoever needs it tells
	}
	for _, name := range models.Variables() {
		fmt.Fprintf(h, "%s=%q\n", name, os.Getenv(name))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
