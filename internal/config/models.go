package config

import (
	"bytes"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// Open gives the models that are configured. It asks nobody. Close the set.
func (m Models) Open() (*llm.Set, error) {
	var cfg llm.Config
	if m.Providers != "" {
		b, err := read(m.Providers)
		if err != nil {
			return nil, &v1.Error{Code: CodeInvalid, Op: "read the providers of models", Message: "the file cannot be used", Err: err}
		}
		if cfg, err = llm.ReadConfig(bytes.NewReader(b)); err != nil {
			return nil, &v1.Error{Code: CodeInvalid, Op: "read the providers of models", Message: m.Providers, Err: err}
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
	if err := m.more(set); err != nil {
		set.Close()
		return nil, err
	}
	return set, nil
}

// more adds the models that are no provider's, and the recorder.
func (m Models) more(set *llm.Set) error {
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

// Small gives the size of a context that needs no run, as package rlm wants it.
func (m Models) Small() int64 {
	if m.PlainBelow == 0 {
		return -1
	}
	return int64(m.PlainBelow)
}
