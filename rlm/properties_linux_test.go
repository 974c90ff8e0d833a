//go:build linux

package rlm

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
)

var seedFlag = flag.Int64("seed", -1, "the only seed of property tests; -1: all")

// eachSeed runs a property test with several seeds, or with the one of -seed.
func eachSeed(t *testing.T, few, many uint64, f func(t *testing.T, seed uint64)) {
	t.Helper()
	sandboxes(t) // skips the test if none may be started, and runs it beside others
	from, to := uint64(0), few
	if testneed.AllTests() {
		to = many
	}
	if *seedFlag >= 0 {
		from, to = uint64(*seedFlag), uint64(*seedFlag)+1
	}
	for seed := from; seed < to; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Logf("to repeat it: go test ./rlm -run '%s' -seed %d", t.Name(), seed)
				}
			}()
			f(t, seed)
		})
	}
}

// pick returns one of several values.
func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// randomOps are what the programs of random trees do.
var randomOps = []string{
	"print(P(%d, 4000))",
	"print(len(llm_query('read: ' + P(%d))))",
	"print(len(llm_query_batched(['read: ' + c for c in chunks(P(%d), 1500, 200)])))",
	"print(len(llm_query_batched(['read: ' + P(%d + i) for i in range(6)])))",
	"print(rlm_query('what is it? ' + P(%d)))",
	"print(rlm_query('count', context=P(%d), schema={'type': 'integer'}))",
	"print(rlm_query_batched(['see ' + P(%d), {'question': 'which?', 'context': [P(%d), P(%d)]}]))",
	"1 / 0",
}

// TestSpendingIsWhatTheServerCounted drives random trees against a real HTTP server that counts for itself. With the
// tokens, cost and calls as the server counts them:
//
//  1. For each model and depth, what is reported equals what the server counted, or it is marked as an estimate. The
//     total is the sum, and is marked if a part is.
//  2. What is reported exceeds a limit at most by the calls of a model that were in flight when its first usage arrived
//     (the run could not know by how much the server counts more than we do), and by tokens of replies that our count
//     has above the maximum length to which the server has kept. From 1 follows the same for what the server counted,
//     except for calls that are marked as estimates.
//  3. The number of requests that the server began to answer never exceeds the limit of calls.
//
// The server keeps to max_tokens, and counts at most twice as many tokens as we do.
func TestSpendingIsWhatTheServerCounted(t *testing.T) {
	eachSeed(t, 12, 200, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 15))
		limits := DefaultLimits()
		limits.Parallel, limits.Children = new(pick(rng, 1, 2, 8)), new(2)
		limits.Turns, limits.Depth = new(2+rng.IntN(4)), new(pick(rng, 1, 2, 2, 3))
		limits.Reply = new(pick[int64](rng, 400, 2000))
		limits.Tokens = new(int64(v1.NoLimit))
		switch seed % 4 {
		case 0, 1:
			limits.Tokens = new(int64(5000 + rng.IntN(80_000)))
		case 2:
			limits.Cost = new(0.1 + 2*rng.Float64())
		case 3:
			limits.Calls = new(int64(3 + rng.IntN(20)))
		}
		s := newCountingServer(t, seed, habits{
			parallel: *limits.Parallel,
			ratio:    map[string]float64{},
			hidden:   map[string]int64{},
			usage:    pick(rng, countsAtEnd, countsAtEnd, countsAlways, countsNever, countsAbsurd, countsOfAKind),
			markup:   pick(rng, 1.0, 1.0, 3),
			faults:   pick(rng, 0, 0.1, 0.3),
			cuts:     pick(rng, 0, 0.3, 1),
			invalid:  rng.IntN(4) == 0,
			ops:      randomOps,
		})
		ratio := pick(rng, 0.5, 1, 1.4, 2)
		for _, m := range []string{"d0", "d1", "d2", "d3", "f"} {
			s.ratio[m], s.hidden[m] = ratio, pick[int64](rng, 0, 0, 100, 1000)
		}
		d := newDesk(t)
		d.opts.Models, d.opts.Limits = s.models(t, rng.IntN(5) == 0, 60_000), limits
		d.opts.PlainBelow = pick[int64](rng, -1, -1, -1, 1<<20)
		q := Question{Query: "What is it?", Inputs: []Input{Text(prose(10_000+rng.IntN(30_000), seed))}}
		if rng.IntN(4) == 0 {
			q.Samples = 2
		}
		t.Logf("limits: %s tokens, $%s, %s calls; %d at once; plain below %d; %d samples; ratio %g; %s; markup %g; faults %g; cuts %g",
			limit(limits.Tokens), limit(limits.Cost), limit(limits.Calls), *limits.Parallel, d.opts.PlainBelow, q.Samples,
			ratio, s.habits.usage, s.markup, s.faults, s.cuts)
		res, err := d.run(q)
		if res == nil {
			t.Fatal(err)
		}
		checkSpending(t, s, res)
	})
}

func limit[T any](l *T) string { return fmt.Sprint(*l) }

func checkSpending(t *testing.T, s *countingServer, res *Result) {
	t.Helper()
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(a)) }
	truth := s.total()
	var sum llm.Usage
	models := map[string]bool{}
	for _, by := range res.By {
		sum = sum.Add(by.Usage)
		name := by.Model[len("p/"):]
		models[name] = true
		got, want := by.Usage, truth[name]
		if got.Input < 0 || got.Output < 0 || got.CachedInput < 0 || got.Cost < 0 || got.Calls != want.Calls {
			t.Errorf("%s: reported %+v; the server counted %+v", name, got, want)
		}
		if !got.Estimated && (got.Tokens() != want.Tokens() || got.CachedInput != want.CachedInput || !near(got.Cost, want.Cost)) {
			t.Errorf("%s: reported %+v, without a mark; the server counted %+v", name, got, want)
		}
	}
	for name := range truth {
		if !models[name] {
			t.Errorf("%s: nothing reported; the server counted %+v", name, truth[name])
		}
	}
	if u := res.Usage; u.Tokens() != sum.Tokens() || u.Calls != sum.Calls || u.Estimated != sum.Estimated || !near(u.Cost, sum.Cost) {
		t.Errorf("total %+v, sum of the parts %+v", u, sum)
	}
	free := s.unforeseen()
	if most := *res.Limits.Tokens; most >= 0 && sum.Tokens() > most+free.Tokens() {
		t.Errorf("%d tokens of %d, and %d could not be foreseen", sum.Tokens(), most, free.Tokens())
	}
	if most := *res.Limits.Cost; most >= 0 && sum.Cost > (most+free.Cost)*(1+1e-9) {
		t.Errorf("$%g of $%g, and $%g could not be foreseen", sum.Cost, most, free.Cost)
	}
	if most := *res.Limits.Calls; most >= 0 && sum.Calls > most {
		t.Errorf("%d calls of %d", sum.Calls, most)
	}
	t.Logf("%s: %d turns, %d children, %+v; unforeseen %d tokens, $%g", res.Reason, res.Turns, res.Children, sum, free.Tokens(), free.Cost)
}

// TestCoverageIsWhatTheServerReceived drives random trees over random contexts. Coverage never exceeds the bytes of the
// context that arrived at the server in requests that it answered, and equals them except for:
//
//   - pieces shorter than shortPiece, which may contain no place of the index;
//   - in JSON, what is escaped in the file.
//
// Only pieces of at least minSpan bytes count as read.
func TestCoverageIsWhatTheServerReceived(t *testing.T) {
	eachSeed(t, 8, 150, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 16))
		limits := DefaultLimits()
		limits.Parallel, limits.Children = new(pick(rng, 1, 8)), new(2)
		limits.Turns, limits.Depth = new(2+rng.IntN(6)), new(pick(rng, 1, 2, 3))
		limits.Tokens = new(pick[int64](rng, 20_000, 100_000, 1_000_000))
		s := newCountingServer(t, seed, habits{
			parallel: *limits.Parallel,
			ratio:    map[string]float64{"d0": 1, "d1": 1, "d2": 1, "d3": 1, "f": 1},
			usage:    countsAtEnd,
			markup:   1,
			faults:   pick(rng, 0, 0.1, 0.3),
			cuts:     pick(rng, 0, 0.3),
			invalid:  rng.IntN(4) == 0,
			ops:      randomOps,
		})
		d := newDesk(t)
		window := pick[int64](rng, 12_000, 60_000) // the smaller one is full after a few turns
		d.opts.Models, d.opts.Limits = s.models(t, rng.IntN(5) == 0, window), limits
		d.opts.PlainBelow = pick[int64](rng, -1, -1, -1, 1<<20)
		inputs, files := randomContext(t, rng, seed)
		q := Question{Query: "What is it?", Inputs: inputs}
		if rng.IntN(4) == 0 {
			q.Samples = 2
		}
		res, err := d.run(q)
		if res == nil {
			t.Fatal(err)
		}
		read, short := arrived(s.read(), files)
		t.Logf("%s: %d turns, %d children, %d bytes read, %d of them in short pieces; reported %+v",
			res.Reason, res.Turns, res.Children, read, short, res.Coverage.Read)
		if got := res.Coverage.Read; got > read || got < read-short {
			t.Errorf("%d bytes reported as read, %d were, %d of them in short pieces", got, read, short)
		}
	})
}

// randomContext returns inputs of a random kind, and the bytes of their files.
func randomContext(t *testing.T, rng *rand.Rand, seed uint64) ([]Input, []string) {
	t.Helper()
	size := func() int { return 500 + rng.IntN(30_000) }
	one, two, three := prose(size(), seed), prose(size(), seed+1000), prose(size(), seed+2000)
	switch rng.IntN(5) {
	case 0:
		return []Input{List([]string{one, two, three})}, []string{one + two + three}
	case 1:
		return []Input{JSON(map[string]string{"one": one, "two": two})}, []string{`{"one":"` + one + `","two":"` + two + `"}`}
	case 2:
		dir := t.TempDir()
		for name, text := range map[string]string{"a.txt": one, "b.txt": two} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return []Input{File(dir)}, []string{one, two}
	case 3:
		return []Input{Text(one), Text(two)}, []string{one, two}
	}
	return []Input{Text(one)}, []string{one}
}

// shortPiece is the length of pieces that coverage finds. A shorter one of n bytes is missed with a probability of
// (7/8)^(n-hashWindow), which is 10^-10 for this length.
const shortPiece = 200

// arrived returns how many bytes of files are in pieces of at least minSpan bytes of the texts, and how many of them only
// in pieces shorter than shortPiece. It compares by brute force. No minSpan bytes may occur twice in the files.
func arrived(texts, files []string) (read, short int64) {
	type place struct{ file, at int }
	places := map[string]place{}
	long, all := make([][]bool, len(files)), make([][]bool, len(files))
	for i, f := range files {
		long[i], all[i] = make([]bool, len(f)), make([]bool, len(f))
		for at := 0; at+minSpan <= len(f); at++ {
			places[f[at:at+minSpan]] = place{i, at}
		}
	}
	for _, text := range texts {
		for at := 0; at+minSpan <= len(text); {
			p, ok := places[text[at:at+minSpan]]
			if !ok {
				at++
				continue
			}
			f, n := files[p.file], minSpan
			for at+n < len(text) && p.at+n < len(f) && text[at+n] == f[p.at+n] {
				n++
			}
			for i := range n {
				all[p.file][p.at+i] = true
				long[p.file][p.at+i] = long[p.file][p.at+i] || n >= shortPiece
			}
			at += n - minSpan + 1
		}
	}
	for i := range files {
		for at := range all[i] {
			if all[i][at] {
				read++
				if !long[i][at] {
					short++
				}
			}
		}
	}
	return read, short
}
