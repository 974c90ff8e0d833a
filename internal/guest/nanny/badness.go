//go:build linux

package nanny

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// badness makes the host's kernel, where that kills for memory, choose what nannies have started before the guest and the nannies themselves,
// whose end would take more along. Memory may belong to no process at all, such as that of a file without a name: then these figures
// are all that it goes by. They are inherited by fork, so a nanny has those of its child for as long as it forks. Whoever likes can lower
// its own again; it then has to answer for what it really uses.
type badness struct {
	file   *os.File
	own    int // the nanny's
	others int // of what it starts
}

// sparedPart, of hundred, is how much of the difference what is spared bears.
const sparedPart = 60

// openBadness gives nil where there is nothing to change. It comes before we are unreadable: the file is not ours after that.
func openBadness(score int) (*badness, error) {
	if score == 0 {
		return nil, nil
	}
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("offer what we start to the out-of-memory killer: %w", err)
	}
	b := &badness{file: f, others: score}
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
		_ = f.Close() // the reason is told
		return nil, fmt.Errorf("offer what we start to the out-of-memory killer: %w", err)
	}
	return b, nil
}

func (b *badness) write(score int) error {
	_, err := b.file.WriteAt([]byte(strconv.Itoa(score)), 0)
	return err
}

// offer comes before a fork and withdraw after it. Both have worked once.
func (b *badness) offer(spared bool) {
	if b == nil {
		return
	}
	score := b.others
	if spared {
		score = b.own + (b.others-b.own)*sparedPart/100
	}
	_ = b.write(score)
}

func (b *badness) withdraw() {
	if b != nil {
		_ = b.write(b.own)
	}
}
