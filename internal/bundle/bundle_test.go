package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program returns the smallest file that counts as a program for this machine. content makes it unique.
func program(content string) []byte {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	return elfFor(machine, content)
}

func elfFor(machine elf.Machine, content string) []byte {
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	_ = binary.Write(&b, binary.LittleEndian, h) // writing to memory never fails
	b.WriteString(content)
	return b.Bytes()
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// store returns a store that finds only programs of the test.
func store(t *testing.T) (s *Store, beside string) {
	t.Helper()
	t.Setenv("RECLUSE_ENGINE", "")
	t.Setenv("RECLUSE_GUEST", "")
	t.Setenv("PATH", t.TempDir())
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	beside = t.TempDir()
	s.embedded = func() ([]Embedded, error) { return nil, nil }
	s.beside = func() ([]string, error) { return []string{beside}, nil }
	return s, beside
}

// again returns the store of a second process with the same cache.
func again(s *Store) *Store {
	return &Store{dir: s.dir, embedded: s.embedded, beside: s.beside, found: map[string]Program{}}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

func carried(name string, content []byte) Embedded { return carriedFor(name, runtime.GOARCH, content) }

func carriedFor(name, arch string, content []byte) Embedded {
	return Embedded{Name: name, Arch: arch, Hash: sumOf(content), Size: int64(len(content)), open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
}

func check(t *testing.T, s *Store, p Program, name string, content []byte) {
	t.Helper()
	if p.Hash != sumOf(content) {
		t.Errorf("hash %s, want %s", p.Hash, sumOf(content))
	}
	if want := filepath.Join(s.dir, p.Hash, name); p.Path != want {
		t.Errorf("path %s, want %s", p.Path, want)
	}
	got, err := os.ReadFile(p.Path)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(content))
	}
	if fi, err := os.Stat(p.Path); err == nil && runtime.GOOS != "windows" && fi.Mode().Perm() != 0o755 {
		t.Errorf("mode %v", fi.Mode())
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, ".recluse*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPlacesInOrder(t *testing.T) {
	s, beside := store(t)
	path := t.TempDir()
	t.Setenv("PATH", path)
	named := filepath.Join(t.TempDir(), "any-name")

	find := func(want []byte, origin string) {
		t.Helper()
		s := again(s)
		p, err := s.find(t.Context(), EngineName, runtime.GOARCH)
		if err != nil {
			t.Fatal(err)
		}
		check(t, s, p, EngineName, want)
		if !strings.HasPrefix(p.Origin, origin) {
			t.Errorf("origin %q, want %q", p.Origin, origin)
		}
	}
	write(t, filepath.Join(path, EngineName), program("on path"))
	find(program("on path"), "PATH")
	write(t, filepath.Join(beside, EngineName), program("beside"))
	find(program("beside"), "beside")
	s.embedded = func() ([]Embedded, error) { return []Embedded{carried(EngineName, program("embedded"))}, nil }
	find(program("embedded"), "embedded")
	write(t, named, program("named"))
	t.Setenv("RECLUSE_ENGINE", named)
	find(program("named"), "RECLUSE_ENGINE")
}

func TestMissingSaysWhatToDo(t *testing.T) {
	s, _ := store(t)
	for _, name := range []string{EngineName, GuestName} {
		_, err := s.find(t.Context(), name, runtime.GOARCH)
		e, ok := errors.AsType[*v1.Error](err)
		if !ok || e.Code != v1.CodeEngineMissing || !strings.Contains(e.Remedy, "cmd/"+name+"@") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestNamedButUnusableIsAnErrorAndNoFallback(t *testing.T) {
	other := elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		other = elf.EM_X86_64
	}
	for name, content := range map[string][]byte{"a script": []byte("#!/bin/sh\n"), "another machine's": elfFor(other, "x"), "empty": {}} {
		t.Run(name, func(t *testing.T) {
			s, beside := store(t)
			write(t, filepath.Join(beside, GuestName), program("beside"))
			named := filepath.Join(t.TempDir(), "named")
			write(t, named, content)
			for _, path := range []string{named, named + "-not-there", filepath.Dir(named)} {
				t.Setenv("RECLUSE_GUEST", path)
				if p, err := s.find(t.Context(), GuestName, runtime.GOARCH); v1.CodeOf(err) != v1.CodeEngineMissing {
					t.Errorf("%s: got %v, %v", path, p, err)
				}
			}
		})
	}
}

func TestTheGuestForAnotherMachine(t *testing.T) {
	mine, other := runtime.GOARCH, "arm64"
	machine := elf.EM_AARCH64
	if mine == other {
		other, machine = "amd64", elf.EM_X86_64
	}
	s, beside := store(t)
	find := func(arch string, want []byte) {
		t.Helper()
		for range 2 { // the second call uses the remembered result
			p, err := s.find(t.Context(), GuestName, arch)
			if err != nil {
				t.Fatal(err)
			}
			check(t, s, p, GuestName, want)
		}
	}
	if _, err := s.find(t.Context(), GuestName, other); v1.CodeOf(err) != v1.CodeEngineMissing || !strings.Contains(err.Error(), GuestName+"-"+other) || !strings.Contains(err.Error(), "GOARCH="+other) {
		t.Errorf("missing guest: %v", err)
	}
	write(t, filepath.Join(beside, GuestName), program("mine"))
	if p, err := s.find(t.Context(), GuestName, other); err == nil {
		t.Errorf("the guest of this machine was used for another architecture: %+v", p)
	}
	find(mine, program("mine"))
	write(t, filepath.Join(beside, GuestName+"-"+other), elfFor(machine, "beside"))
	find(other, elfFor(machine, "beside"))
	s = again(s)
	s.embedded = func() ([]Embedded, error) {
		return []Embedded{carriedFor(GuestName, mine, program("in it")), carriedFor(GuestName, other, elfFor(machine, "in it"))}, nil
	}
	find(other, elfFor(machine, "in it"))
	find(mine, program("in it"))
	// A program named by a variable is for one architecture, even if it was used before.
	s = again(s)
	named := filepath.Join(t.TempDir(), "named")
	write(t, named, program("named"))
	t.Setenv("RECLUSE_GUEST", named)
	find(mine, program("named"))
	if p, err := s.find(t.Context(), GuestName, other); v1.CodeOf(err) != v1.CodeEngineMissing {
		t.Errorf("the guest of this machine was used for another architecture: %+v, %v", p, err)
	}
}

func TestExtractsOnceAndRepairs(t *testing.T) {
	s, _ := store(t)
	content := program("embedded")
	opened := 0
	s.embedded = func() ([]Embedded, error) {
		e := carried(GuestName, content)
		open := e.open
		e.open = func() (io.ReadCloser, error) { opened++; return open() }
		return []Embedded{e}, nil
	}
	for range 3 {
		if _, err := again(s).find(t.Context(), GuestName, runtime.GOARCH); err != nil {
			t.Fatal(err)
		}
	}
	if opened != 1 {
		t.Errorf("extracted %d times", opened)
	}
	// A truncated file is written again.
	path := filepath.Join(s.dir, sumOf(content), GuestName)
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	p, err := again(s).find(t.Context(), GuestName, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, p, GuestName, content)
	// A file that was deleted while the program runs, too.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if p, err = s.find(t.Context(), GuestName, runtime.GOARCH); err != nil {
		t.Fatal(err)
	}
	check(t, s, p, GuestName, content)
}

func TestDamagedEmbeddedIsRefused(t *testing.T) {
	for name, damaged := range map[string]string{"other content": "embeddeD", "shorter": "emb", "longer": "embedded and more"} {
		t.Run(name, func(t *testing.T) {
			s, _ := store(t)
			e := carried(GuestName, program("embedded"))
			e.open = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(program(damaged))), nil }
			s.embedded = func() ([]Embedded, error) { return []Embedded{e}, nil }
			if p, err := s.find(t.Context(), GuestName, runtime.GOARCH); err == nil {
				t.Errorf("got %v", p)
			}
			if entries, _ := os.ReadDir(s.dir); len(entries) != 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

func TestReplacedProgramIsNoticedAndTheOldOneStays(t *testing.T) {
	s, beside := store(t)
	path := filepath.Join(beside, EngineName)
	write(t, path, program("one"))
	first, err := s.find(t.Context(), EngineName, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// Same size, same modification time: as with an installer that sets times.
	write(t, path+".new", program("two"))
	if err := os.Chtimes(path+".new", fi.ModTime(), fi.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	second, err := again(s).find(t.Context(), EngineName, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		check(t, s, second, EngineName, program("two"))
	}
	old, err := again(s).ByHash(first.Hash, EngineName)
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, old, EngineName, program("one"))
}

func TestRememberedProgramIsNotReadAgain(t *testing.T) {
	s, beside := store(t)
	write(t, filepath.Join(beside, GuestName), program("x"))
	p, err := s.find(t.Context(), GuestName, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	q, err := again(s).find(t.Context(), GuestName, runtime.GOARCH)
	if err != nil || q != p {
		t.Fatalf("got %v, %v, want %v", q, err, p)
	}
	if after, err := os.Stat(p.Path); err != nil || !os.SameFile(before, after) {
		t.Error("the program was copied again")
	}
}

func TestByHash(t *testing.T) {
	s, _ := store(t)
	for _, tt := range []struct {
		hash, name string
		want       v1.Code
	}{
		{strings.Repeat("0", 64), EngineName, v1.CodeEngineMissing},
		{"../../../etc", EngineName, v1.CodeInvalidRequest},
		{"", GuestName, v1.CodeInvalidRequest},
		{strings.Repeat("0", 64), "../passwd", v1.CodeInvalidRequest},
	} {
		if _, err := s.ByHash(tt.hash, tt.name); v1.CodeOf(err) != tt.want {
			t.Errorf("%q %q: got %v, want %s", tt.hash, tt.name, err, tt.want)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	s, beside := store(t)
	content := program(strings.Repeat("x", 1<<20))
	write(t, filepath.Join(beside, EngineName), content)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			p, err := again(s).find(context.Background(), EngineName, runtime.GOARCH)
			if err != nil || p.Hash != sumOf(content) {
				t.Errorf("got %v, %v", p, err)
			}
			got, err := os.ReadFile(p.Path)
			if err != nil || sumOf(got) != p.Hash {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
}
