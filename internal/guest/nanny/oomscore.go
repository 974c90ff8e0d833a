//go:build linux

package nanny

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// oomScore sets oom_score_adj so that the OOM killer of the host's kernel prefers processes that nannies have started
// over the guest and the nannies, whose end would end more processes. Some memory belongs to no process, such as that
// of an unnamed file; then this score alone decides. The score is inherited by fork, so a nanny has the score of its
// children while it forks. A process may lower its score back to the nanny's; then its real memory use decides.
type oomScore struct {
	file   *os.File
	own    int // of the nanny
	others int // of the processes it starts
}

// sparedPart is the part of the difference between own and others that is added for a spared process, in percent.

// sparedPart, of hundred, is how much of the difference what is spared bears.
const sparedPart = 60

// openOOMScore returns nil if score is 0. It must be called before the process becomes non-dumpable, because the file
// then belongs to root.
func openOOMScore(score int) (*oomScore, error) {
	if score == 0 {
		return nil, nil
	}
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("set oom_score_adj: %w", err)
	}
	b := &oomScore{file: f, others: score}
	text := make([]byte, 16)
	n, err := f.Read(text)
	if err == nil {
		b.own, err = strconv.Atoi(strings.TrimSpace(string(text[:n])))
	}
	if err == nil {
		err = b.write(score)
	}
	if err == nil {
		err = b.write(b.own)
	}
	if err != nil {
		_ = f.Close() // the first error is returned
		return nil, fmt.Errorf("set oom_score_adj: %w", err)
	}
	return b, nil
}

func (b *oomScore) write(score int) error {
	_, err := b.file.WriteAt([]byte(strconv.Itoa(score)), 0)
	return err
}

// raise sets the score for the next fork, and restore sets the nanny's own again. Errors are ignored, because
// openOOMScore has tried both.
func (b *oomScore) raise(spared bool) {
	if b == nil {
		return
	}
	score := b.others
	if spared {
		score = b.own + (b.others-b.own)*sparedPart/100
	}
	_ = b.write(score)
}

func (b *oomScore) restore() {
	if b != nil {
		_ = b.write(b.own)
	}
}
