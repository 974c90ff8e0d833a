package v1

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteUnits are the unit letters of sizes; each unit is 1024 times the previous one.
const byteUnits = "kmgtp"

// ParseBytes parses a number of bytes such as 4096, 64k, 256m, 1.5g or 2GiB. All units are powers of 1024.
func ParseBytes(text string) (int64, error) {
	bad := fmt.Errorf("invalid size %q: want a number like 4096, 256m or 2g", text)
	s := strings.ToLower(strings.TrimSpace(text))
	s = strings.TrimSuffix(strings.TrimSuffix(s, "b"), "i")
	unit := 1.0
	if i := strings.IndexByte(byteUnits, last(s)); i >= 0 {
		unit, s = math.Exp2(10*float64(i+1)), s[:len(s)-1]
	}
	s = strings.TrimSpace(s)
	if strings.Trim(s, "0123456789.") != "" {
		return 0, bad // signs and exponents are invalid
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n*unit >= math.MaxInt64 {
		return 0, bad
	}
	if unit == 1 {
		whole, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, bad
		}
		return whole, nil
	}
	return int64(n * unit), nil
}

// last returns the last byte of s, or 0.
func last(s string) byte {
	if s == "" {
		return 0
	}
	return s[len(s)-1]
}

// FormatBytes returns the shortest text that ParseBytes reads as n.
func FormatBytes(n int64) string {
	for i := len(byteUnits) - 1; i >= 0; i-- {
		if unit := int64(1) << (10 * (i + 1)); n >= unit && n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + byteUnits[i:i+1]
		}
	}
	return strconv.FormatInt(n, 10)
}

// SizeText returns n for people, in the units of ParseBytes and with at most four digits: "512 MiB", "1.5 GiB", "100
// B".
func SizeText(n int64) string {
	unit, name := int64(1), "B"
	for i := range byteUnits {
		next := int64(1) << (10 * (i + 1))
		if n < next {
			break
		}
		unit, name = next, strings.ToUpper(byteUnits[i:i+1])+"iB"
	}
	return strconv.FormatFloat(float64(n)/float64(unit), 'g', 4, 64) + " " + name
}
