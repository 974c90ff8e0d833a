//go:build linux

// Command load is a client, and a server, of the benchmarks of the network. Called as "load URL ACTION N", it prints
// the duration of each operation in nanoseconds:
//
//	download  one GET of N bytes
//	upload    one POST of N bytes
//	connect   N GETs, each on a connection of its own
//	kept      N GETs on one connection
//	many      N connections, which are all open before the first GET
//
// Called as "load serve PORT", it serves what these operations need.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/bench/load/web"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		l, err := web.Listen("127.0.0.1:" + args[1])
		if err != nil {
			return err
		}
		return web.Serve(l)
	case len(args) != 3:
		return errors.New("usage: load URL ACTION N | load serve PORT")
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	return perform(args[0], args[1], n)
}

func perform(url, action string, n int) error {
	transport := &http.Transport{DisableKeepAlives: action == "connect"}
	client := &http.Client{Transport: transport}
	switch action {
	case "download":
		return timed(1, func() error { return do(client, http.MethodGet, url+"/?n="+strconv.Itoa(n), nil, n) })
	case "upload":
		body := io.LimitReader(web.Zeros{}, int64(n))
		return timed(1, func() error { return do(client, http.MethodPost, url, body, web.Small) })
	case "connect", "kept":
		return timed(n, func() error { return do(client, http.MethodGet, url, nil, web.Small) })
	case "many":
		return timed(1, func() error { return many(url, n) })
	}
	return fmt.Errorf("unknown action %q", action)
}

func timed(n int, f func() error) error {
	for range n {
		began := time.Now()
		if err := f(); err != nil {
			return err
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
	return nil
}

// do makes a request, whose response must have so many bytes.
func do(c *http.Client, method, url string, body io.Reader, want int) error {
	r, err := http.NewRequestWithContext(context.Background(), method, url, body)
	if err != nil {
		return err
	}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.Copy(io.Discard, resp.Body)
	if err == nil && got != int64(want) {
		err = fmt.Errorf("%s: %d bytes, want %d", resp.Status, got, want)
	}
	return err
}

// many opens connections, and makes a request on each when all are open.
func many(url string, n int) error {
	errs := make([]error, n)
	var open, all sync.WaitGroup
	open.Add(n)
	for i := range n {
		all.Go(func() {
			r, w := io.Pipe()
			go func() { // the request begins, and its body ends when all connections are open
				_, _ = w.Write([]byte{0})
				open.Done()
				open.Wait()
				_ = w.Close()
			}()
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			if errs[i] = do(c, http.MethodPost, url, r, web.Small); errs[i] != nil {
				_ = r.CloseWithError(errs[i])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
