package trajectory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// firstChunk is the number of bytes that are read first at each end of a log.
const firstChunk = 16 << 10

// Ends returns the first and the last event in a run's directory and the size of the log, without reading the events
// between them. It ignores an incomplete last line. It returns io.EOF if the log has no complete line.
func Ends(dir string) (first, last v1.RunEvent, size int64, err error) {
	f, err := os.Open(filepath.Join(dir, FileName))
	if err != nil {
		return first, last, 0, fmt.Errorf("read events: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return first, last, 0, fmt.Errorf("read events: %w", err)
	}
	size = info.Size()
	if first, _, err = newScannerSize(f, firstChunk).next(); err != nil {
		return first, last, size, err
	}
	line, err := lastLine(f, size)
	if err != nil {
		return first, last, size, err
	}
	if err := json.Unmarshal(line, &last); err != nil {
		return first, last, size, fmt.Errorf("read events: invalid line: %w", err)
	}
	return first, last, size, nil
}

// lastLine returns the last complete line. The caller has checked that there is one.
func lastLine(f io.ReaderAt, size int64) ([]byte, error) {
	for chunk := int64(firstChunk); ; chunk *= 4 {
		from := max(0, size-chunk)
		b := make([]byte, size-from)
		if _, err := f.ReadAt(b, from); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read events: %w", err)
		}
		end := bytes.LastIndexByte(b, '\n')
		if end < 0 {
			if from == 0 {
				return nil, io.EOF
			}
			continue
		}
		begin := bytes.LastIndexByte(b[:end], '\n') + 1
		if begin > 0 || from == 0 {
			return b[begin:end], nil
		}
	}
}
