package runview

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestThePageInABrowser opens a page of a hostile model in Chromium, in both colour schemes. TEST_PAGE_DIR names a
// directory that keeps the page and the pictures.
func TestThePageInABrowser(t *testing.T) {
	testneed.Slow(t, "it starts a browser")
	dir := os.Getenv("TEST_PAGE_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	file := filepath.Join(dir, "run.html")
	text := hostile + strings.Repeat("x", 30_000) + "\n" + strings.Repeat("a line of the output\n", 200)
	page := asPage(t, transcript(novel(t, text)), TranscriptOptions{})
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	dom := testneed.Chromium(t, file, "--dump-dom")
	if strings.Contains(dom, "<title>broken") || strings.Contains(dom, "<script") || strings.Contains(dom, "<img") {
		t.Errorf("the text of a model has changed the page")
	}
	// Every element of the page is where the template has it: the text of a model has closed none.
	if got, want := strings.Count(dom, "<details"), strings.Count(page, "<details"); got != want {
		t.Errorf("%d parts in the browser, %d in the page", got, want)
	}
	if !strings.Contains(dom, "Each row has the calls of that node") {
		t.Error("the page is incomplete")
	}
	bright := map[string]uint32{}
	for scheme, flag := range map[string]string{"light": "1", "dark": "0"} {
		picture := filepath.Join(dir, scheme+".png")
		testneed.Chromium(t, file, "--blink-settings=preferredColorScheme="+flag, "--window-size=1100,2000", "--screenshot="+picture)
		f, err := os.Open(picture)
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(f)
		f.Close()
		if err != nil || img.Bounds().Dx() != 1100 {
			t.Fatalf("%s: %v %v", scheme, err, img.Bounds())
		}
		bright[scheme], _, _, _ = img.At(3, 3).RGBA()
	}
	if bright["light"] < 0xf000 || bright["dark"] > 0x3000 {
		t.Errorf("brightness of the background: %v", bright)
	}
}
