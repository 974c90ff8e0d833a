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

// endChunk is how much is read at each end of a log at first.
const endChunk = 16 << 10

// Ends gives the first and the last event of a run's directory and the log's size, without what is between. A log without a whole line is io.EOF; half a
// last line is passed over.
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
	if first, _, err = newScannerSize(f, endChunk).next(); err != nil {
		return first, last, size, err
	}
	line, err := lastLine(f, size)
	if err != nil {
		return first, last, size, err
	}
	if err := json.Unmarshal(line, &last); err != nil {
		return first, last, size, fmt.Errorf("read events: a line that is no event: %w", err)
	}
	return first, last, size, nil
}

// lastLine gives the last line that has its end. There is one.
func lastLine(f io.ReaderAt, size int64) ([]byte, error) {
	for chunk := int64(endChunk); ; chunk *= 4 {
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
