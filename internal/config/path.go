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

// paths returns pointers to the paths in the value of a key.
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

// split splits ROLE=FILE into "ROLE=" and the file. Only keys with the tag path:"role" have roles.
func (f field) split(value string) (role, file string) {
	if f.tag.Get("path") != "role" {
		return "", value
	}
	if role, file, ok := strings.Cut(value, "="); ok {
		return role + "=", file
	}
	return "", value
}

// resolve makes the paths in the value of a key absolute, because a background server has another working directory.
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

// Environ returns the environment variables with paths, made absolute, for a background server.
func (c *Config) Environ() []string {
	var out []string
	for _, f := range all() {
		if f.tag.Get("path") != "" && c.sources[f.key].Variable != "" {
			out = append(out, f.variable()+"="+f.text(c))
		}
	}
	return out
}

// Fingerprint returns a hash of what a server reads at its start: values, the files that they name, and the environment
// variables of model providers. The section client is not included.
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
			if info, err := os.Stat(file); err == nil { // the code that reads the file reports errors
				fmt.Fprintf(h, "%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	var models llm.Config
	if b, err := read(c.Models.Providers); err == nil {
		models, _ = llm.ReadConfig(bytes.NewReader(b)) // Models.Open reports the error
	}
	for _, name := range models.Variables() {
		fmt.Fprintf(h, "%s=%q\n", name, os.Getenv(name))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
