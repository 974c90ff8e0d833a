package main

import (
	"testing"
	"time"
)

func TestMomentIsADurationOrATime(t *testing.T) {
	day := time.Date(2030, 1, 31, 0, 0, 0, 0, time.Local)
	for in, want := range map[string]time.Time{
		"2030-01-31":                day,
		"2030-01-31 15:04":          day.Add(15*time.Hour + 4*time.Minute),
		"2030-01-31T15:04:05":       day.Add(15*time.Hour + 4*time.Minute + 5*time.Second),
		"2030-01-31T15:04:05+02:00": time.Date(2030, 1, 31, 13, 4, 5, 0, time.UTC),
		"2h":                        time.Now().Add(-2 * time.Hour),
		"7d":                        time.Now().Add(-7 * 24 * time.Hour),
	} {
		var m moment
		if err := m.Set(in); err != nil || m.time.Sub(want).Abs() > time.Minute {
			t.Errorf("%q: %s, %v, want %s", in, m.time, err, want)
		}
	}
	for _, in := range []string{"", "0", "none", "-1h", "yesterday", "2030-13-01"} {
		if err := new(moment).Set(in); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}
