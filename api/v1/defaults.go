package v1

import (
	"time"
)

// The defaults of every sandbox. They are declared only here; each can be set in a Spec, a Command or a Cell.
const (
	DefaultTimeout        = 30 * time.Second       // cells and commands started through the library
	DefaultKillGrace      = 300 * time.Millisecond // between SIGTERM and SIGKILL
	DefaultInterruptGrace = 2 * time.Second        // between the interrupt of a cell and the SIGKILL of its interpreter
	DefaultMemory         = 512 << 20
	DefaultCPUs           = 1.0
	DefaultProcesses      = 256
	DefaultOpenFiles      = 4096
	DefaultDisk           = 10 << 30 // where files are on disk
	DefaultInlineBytes    = 64 << 10 // output kept in a verdict, head and tail together, per stream
	DefaultSpoolBytes     = 10 << 20 // output kept in a file in the sandbox, per stream
	DefaultUID            = 1000
	DefaultHome           = "/home/user"
	DefaultContext        = "default" // interpreter context of cells that name none

	// MinMemory is the least memory with which a sandbox boots and runs Python.
	MinMemory = 64 << 20
	// MemoryReserve is the memory that files must leave for processes.
	MemoryReserve = 32 << 20
	// MinScratch is the least space for files outside of the home directory.
	MinScratch = 16 << 20
	// MinProcesses leaves room for an interpreter and a shell with a pipeline.
	MinProcesses = 8
	MinOpenFiles = 32
	MinCPUs      = 0.05

	// MaxEnv bounds the environment of a sandbox. Every program in the sandbox inherits it, and Linux allows 2 MiB for
	// all arguments and environment variables of a program.
	MaxEnv = 128 << 10

	// MaxCode bounds the code of one cell, in bytes.
	MaxCode = 16 << 20
)
