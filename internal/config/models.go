package config

import (
	"bytes"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// Open returns the configured models. It sends no requests. The caller must close the set.
func (m Models) Open() (*llm.Set, error) {
	var cfg llm.Config
	if m.Providers != "" {
		b, err := read(m.Providers)
		if err != nil {
			return nil, &v1.Error{
				Code:    CodeInvalid,
				Op:      "read models.providers",
				Message: "cannot read the file",
				Err:     err,
			}
		}
		if cfg, err = llm.ReadConfig(bytes.NewReader(b)); err != nil {
			return nil, &v1.Error{Code: CodeInvalid, Op: "read models.providers", Message: m.Providers, Err: err}
		}
	}
	if m.Default != "" {
		cfg.Default = m.Default
	}
	cfg.Env = os.Getenv
	set, err := llm.Open(cfg)
	if err != nil {
		return nil, err
	}
	if err := m.addFiles(set); err != nil {
		set.Close()
		return nil, err
	}
	return set, nil
}

// addFiles adds scripted models, cassettes and the recorder.
func (m Models) addFiles(set *llm.Set) error {
	for _, file := range m.Scripts {
		s, err := llm.OpenScript(file)
		if err != nil {
			return err
		}
		set.Add(s)
	}
	for _, file := range m.Cassettes {
		c, err := llm.Replay(file)
		if err != nil {
			return err
		}
		for _, model := range c.Models() {
			set.Add(model)
		}
	}
	if m.Record == "" {
		return nil
	}
	c, err := llm.Record(m.Record)
	if err != nil {
		return err
	}
	set.Record(c)
	return nil
}

// Small returns the value of rlm.Options.PlainBelow, where -1 means never.
func (m Models) Small() int64 {
	return orNone(int64(m.PlainBelow))
}

// MaxPrompts returns the value of rlm.Options.MaxPrompts, where -1 means none.
func (m Models) MaxPrompts() int64 { return orNone(int64(m.Prompts)) }

// orNone returns n, or -1 for 0: in the options of package rlm, 0 means the default.
func orNone(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}
