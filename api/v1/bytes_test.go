package v1

import "testing"

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{
		0:                "0 B",
		1023:             "1023 B",
		64 << 10:         "64 KiB",
		512 << 20:        "512 MiB",
		3 << 29:          "1.5 GiB",
		1_000_000_000:    "953.7 MiB",
		1 << 40:          "1 TiB",
		8 << 50:          "8 PiB",
		MinMemory:        "64 MiB",
		(1 << 20) + 1:    "1 MiB",
		10*(1<<30) + 512: "10 GiB",
	} {
		if got := SizeText(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
}
