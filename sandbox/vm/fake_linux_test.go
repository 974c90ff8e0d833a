package vm

import (
	"bufio"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The test program can play a monitor: it is started under the name of one. It accepts only the requests that the
// description of the monitor's API allows, in the states in which it allows them, and records every other request. It
// runs no machine, and nothing that it does shows that a real monitor works.

// apiDescription describes the part of an API that we use.
type apiDescription struct {
	Prefix   string                  `json:"prefix"`
	States   []string                `json:"states"` // the first is that of a new process
	Requests []requestDescription    `json:"requests"`
	Objects  map[string]fieldsByName `json:"objects"`
}

// requestDescription describes a request.
type requestDescription struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   string `json:"body,omitempty"`   // name of an object
	In     string `json:"in"`               // states in which it is allowed, separated by |
	To     string `json:"to,omitempty"`     // the next state
	After  string `json:"after,omitempty"`  // paths that must have been requested before, separated by a space
	Twice  bool   `json:"twice,omitempty"`  // it may be repeated
	Status int    `json:"status"`           // of success
	Answer string `json:"answer,omitempty"` // kind of the body of a success
}

// fieldsByName are the fields of an object. A type ends with ! if the field is required. Types: string, integer,
// boolean, path (of an existing file), socket (a path that does not exist yet), new (a path of a file to make), an
// object, a list ([]object), or the allowed values, separated by |.
type fieldsByName map[string]string

// fakeOrders tells a fake what to do. It is a file in its working directory.
type fakeOrders struct {
	FailAt  string `json:"fail_at"`  // METHOD /path of the request that fails, and the state that it asks for, if any
	How     string `json:"how"`      // refuse, die, hang, garbage, long, cut, half
	State   string `json:"state"`    // state at the start
	Console string `json:"console"`  // what the guest writes
	NoGuest bool   `json:"no_guest"` // the guest does not listen
}

//go:embed testdata/api/*.json
var descriptions embed.FS

const (
	ordersFile = "orders.json"
	fakeLog    = "requests.log"
)

// playMonitor plays the monitor under whose name this program was started, if any.
func playMonitor() {
	name := filepath.Base(os.Args[0])
	versions := map[string]string{
		firecrackerProgram: "Firecracker v1.16.2", cloudHypervisorProgram: "cloud-hypervisor v52.0", jailerProgram: "Jailer v1.16.2",
	}
	if versions[name] == "" {
		return
	}
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "fake:", err)
		os.Exit(3)
	}
	args := os.Args[1:]
	if slices.Contains(args, "--version") {
		if other, err := os.ReadFile(os.Args[0] + ".version"); err == nil {
			versions[name] = string(other)
		}
		fmt.Println(versions[name])
		os.Exit(0)
	}
	if name == jailerProgram {
		inner, err := enterFakeJail(args)
		if err != nil {
			fail(err)
		}
		name, args = firecrackerProgram, inner
	}
	socket, err := fakeArgs(name, args)
	if err != nil {
		fail(err)
	}
	f := &fakeMonitor{name: name, done: map[string]int{}}
	if err := f.load(); err != nil {
		fail(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		fail(err)
	}
	fail(http.Serve(l, f))
}

// enterFakeJail checks the arguments of the jailer as its documentation describes them, and returns those of the
// monitor. It makes no jail: it only changes its directory to the root of one.
func enterFakeJail(args []string) ([]string, error) {
	at := slices.Index(args, "--")
	if at < 0 || at%2 != 0 {
		return nil, fmt.Errorf("arguments %q", args)
	}
	got := map[string]string{}
	for i := 0; i < at; i += 2 {
		got[args[i]] = args[i+1]
	}
	for _, need := range []string{"--id", "--exec-file", "--uid", "--gid", "--chroot-base-dir"} {
		if got[need] == "" {
			return nil, fmt.Errorf("without %s: %q", need, args)
		}
	}
	if strings.Trim(got["--id"], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" || len(got["--id"]) > 64 {
		return nil, fmt.Errorf("invalid id %q", got["--id"])
	}
	if uid, err := strconv.Atoi(got["--uid"]); err != nil || uid == 0 || got["--gid"] != got["--uid"] {
		return nil, fmt.Errorf("user %q, group %q", got["--uid"], got["--gid"])
	}
	if !filepath.IsAbs(got["--exec-file"]) || filepath.Base(got["--exec-file"]) != firecrackerProgram {
		return nil, fmt.Errorf("program %q", got["--exec-file"])
	}
	if len(os.Environ()) > 0 {
		return nil, fmt.Errorf("environment %q", os.Environ())
	}
	root := filepath.Join(got["--chroot-base-dir"], filepath.Base(got["--exec-file"]), got["--id"], "root")
	if err := os.Chdir(root); err != nil {
		return nil, err
	}
	if orders, err := os.ReadFile(filepath.Join(filepath.Dir(got["--exec-file"]), ordersFile)); err == nil {
		if err := os.WriteFile(ordersFile, orders, 0o600); err != nil {
			return nil, err
		}
	}
	return append(args[at+1:], "--id", got["--id"]), os.WriteFile(firecrackerProgram+".pid", []byte(strconv.Itoa(os.Getpid())), 0o600)
}

// fakeArgs checks the arguments of a monitor, and returns the path of its socket.
func fakeArgs(name string, args []string) (string, error) {
	want, prefix := []string{"--api-sock", "", "--id", ""}, ""
	if name == cloudHypervisorProgram {
		want, prefix = []string{"--api-socket", "", "--seccomp", "true"}, "path="
	}
	if len(args) != len(want) {
		return "", fmt.Errorf("arguments %q", args)
	}
	for i, w := range want {
		if w != "" && args[i] != w {
			return "", fmt.Errorf("arguments %q: %q instead of %q", args, args[i], w)
		}
	}
	path, ok := strings.CutPrefix(args[1], prefix)
	if !ok || path == "" {
		return "", fmt.Errorf("socket %q", args[1])
	}
	return path, nil
}

// fakeMonitor serves the described API.
type fakeMonitor struct {
	name string
	api  apiDescription

	mu     sync.Mutex
	orders fakeOrders     // guarded by mu
	state  string         // guarded by mu
	done   map[string]int // guarded by mu; requests that succeeded
}

func (f *fakeMonitor) load() error {
	text, err := descriptions.ReadFile("testdata/api/" + f.name + ".json")
	if err == nil {
		err = json.Unmarshal(text, &f.api)
	}
	if err != nil {
		return err
	}
	f.state = f.api.States[0]
	if err := f.obey(); err != nil {
		return err
	}
	if f.orders.State != "" {
		f.state = f.orders.State
	}
	return nil
}

// obey reads the orders, which can change while the fake runs.
func (f *fakeMonitor) obey() error {
	f.orders = fakeOrders{}
	text, err := os.ReadFile(ordersFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &f.orders)
}

// ServeHTTP implements http.Handler.
func (f *fakeMonitor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.obey(); err != nil {
		panic(err)
	}
	path := strings.TrimPrefix(r.URL.Path, f.api.Prefix)
	request := r.Method + " " + path
	log, err := os.OpenFile(fakeLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer log.Close()
	d, body, err := f.check(r, path)
	if err != nil {
		fmt.Fprintf(log, "INVALID %s in %s: %v\n", request, f.state, err)
		f.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	fmt.Fprintln(log, request)
	failing := request
	if asked, ok := body["state"].(string); ok {
		failing += " " + asked
	}
	if f.orders.FailAt == failing && f.fail(w) {
		return
	}
	if d.To != "" {
		f.state = d.To
	}
	if d.Body == "vm" { // the state is in the body
		f.state = map[string]string{"Paused": "Paused", "Resumed": "Running"}[body["state"].(string)]
	}
	f.done[path]++
	if err := f.effect(path, body); err != nil {
		fmt.Fprintf(log, "INVALID %s: %v\n", request, err)
	}
	w.WriteHeader(d.Status)
	switch d.Answer {
	case "instance":
		_ = json.NewEncoder(w).Encode(object{"app_name": "Firecracker", "id": "x", "state": f.state, "vmm_version": "1.16.2"})
	case "info":
		_ = json.NewEncoder(w).Encode(object{"config": object{}, "state": f.state})
	case "ping":
		_ = json.NewEncoder(w).Encode(object{"version": "v52.0", "build_version": "v52.0", "pid": os.Getpid(), "features": []string{"kvm"}})
	}
}

// refuse answers with an error as the monitor's API defines it.
func (f *fakeMonitor) refuse(w http.ResponseWriter, status int, why string) {
	w.WriteHeader(status)
	if f.name == firecrackerProgram {
		_ = json.NewEncoder(w).Encode(object{"fault_message": why})
		return
	}
	_ = json.NewEncoder(w).Encode([]string{"Error from API", why})
}

// fail fails a request as the orders say. It reports false if the request must also have its effect.
func (f *fakeMonitor) fail(w http.ResponseWriter) bool {
	switch f.orders.How {
	case "refuse":
		f.refuse(w, http.StatusInternalServerError, "ordered to refuse")
	case "die":
		fmt.Fprintln(os.Stderr, "ordered to die")
		os.Exit(1)
	case "hang":
		time.Sleep(time.Minute)
	case "garbage":
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte("<html>\xff"))
	case "long":
		w.WriteHeader(http.StatusOK)
		junk := []byte(strings.Repeat("x", 1<<20))
		for range 16 {
			if _, err := w.Write(junk); err != nil {
				return true
			}
		}
	case "cut":
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"))
			_ = c.Close()
		}
	default:
		return false
	}
	return true
}

// check compares a request with the description.
func (f *fakeMonitor) check(r *http.Request, path string) (*requestDescription, object, error) {
	if r.Host != "localhost" || !strings.HasPrefix(r.URL.Path, f.api.Prefix) {
		return nil, nil, fmt.Errorf("invalid path %s%s", r.Host, r.URL.Path)
	}
	i := slices.IndexFunc(f.api.Requests, func(d requestDescription) bool { return d.Method == r.Method && d.Path == path })
	if i < 0 {
		return nil, nil, fmt.Errorf("invalid request method and/or path: %s %s", r.Method, path)
	}
	d := &f.api.Requests[i]
	var body object
	if r.ContentLength > 0 {
		decoder := json.NewDecoder(r.Body)
		decoder.UseNumber()
		if err := decoder.Decode(&body); err != nil {
			return d, nil, err
		}
		if r.Header.Get("Content-Type") != "application/json" {
			return d, nil, fmt.Errorf("content type %q", r.Header.Get("Content-Type"))
		}
	}
	switch {
	case (body != nil) != (d.Body != ""):
		return d, nil, fmt.Errorf("body %v", body)
	case !slices.Contains(strings.Split(d.In, "|"), f.state):
		return d, nil, fmt.Errorf("the request is not supported in the state %s", f.state)
	case f.done[path] > 0 && !d.Twice:
		return d, nil, fmt.Errorf("it was requested before")
	}
	for before := range strings.FieldsSeq(d.After) {
		if f.done[before] == 0 {
			return d, nil, fmt.Errorf("%s must come first", before)
		}
	}
	return d, body, f.checkObject(d.Body, body)
}

func (f *fakeMonitor) checkObject(kind string, o object) error {
	fields := f.api.Objects[kind]
	for name := range o {
		if fields[name] == "" {
			return fmt.Errorf("unknown field %s of %s", name, kind)
		}
	}
	for name, want := range fields {
		value, set := o[name]
		want, required := strings.CutSuffix(want, "!")
		if !set {
			if required {
				return fmt.Errorf("missing field %s of %s", name, kind)
			}
			continue
		}
		if err := f.checkValue(want, value); err != nil {
			return fmt.Errorf("field %s of %s: %w", name, kind, err)
		}
	}
	return nil
}

func (f *fakeMonitor) checkValue(want string, value any) error {
	text, isText := value.(string)
	ok := false
	switch {
	case want == "string":
		ok = isText
	case want == "integer":
		n, number := value.(json.Number)
		_, err := n.Int64()
		ok = number && err == nil
	case want == "boolean":
		_, ok = value.(bool)
	case want == "path" || want == "url":
		text, isURL := strings.CutPrefix(text, "file://")
		_, err := os.Stat(text)
		ok = isText && err == nil && isURL == (want == "url")
	case want == "socket" || want == "new":
		_, err := os.Lstat(text)
		ok = isText && text != "" && os.IsNotExist(err)
	case strings.HasPrefix(want, "[]"):
		list, isList := value.([]any)
		for _, v := range list {
			if err := f.checkValue(want[2:], v); err != nil {
				return err
			}
		}
		ok = isList
	case f.api.Objects[want] != nil:
		o, isObject := value.(object)
		if !isObject {
			return fmt.Errorf("%v is not an object", value)
		}
		return f.checkObject(want, o)
	default:
		ok = isText && slices.Contains(strings.Split(want, "|"), text)
	}
	if !ok {
		return fmt.Errorf("%v is not %s", value, want)
	}
	return nil
}

// effect does what a request causes on the host: sockets and files.
func (f *fakeMonitor) effect(path string, body object) error {
	half := f.orders.How == "half"
	write := func(names ...string) error {
		for i, name := range names {
			if half && i > 0 {
				break
			}
			if err := os.WriteFile(name, []byte("state in "+filepath.Base(name)), 0o600); err != nil {
				return err
			}
		}
		return nil
	}
	switch path {
	case "/serial":
		return os.WriteFile(body["serial_out_path"].(string), []byte(f.orders.Console), 0o600)
	case "/snapshot/create":
		return write(body["snapshot_path"].(string), body["mem_file_path"].(string))
	case "/vm.snapshot":
		dir := strings.TrimPrefix(body["destination_url"].(string), "file://")
		return write(filepath.Join(dir, "config.json"), filepath.Join(dir, "memory-ranges"), filepath.Join(dir, "state.json"))
	case "/actions", "/snapshot/load", "/vm.boot", "/vm.restore":
		if err := f.serve(consoleSocket, f.talk); err != nil && f.name == cloudHypervisorProgram {
			return err
		}
		return f.serve(streamSocket, f.stream)
	}
	return nil
}

func (f *fakeMonitor) serve(name string, talk func(net.Conn)) error {
	if name == consoleSocket && f.name == firecrackerProgram {
		return nil
	}
	l, err := net.Listen("unix", name)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go talk(c)
		}
	}()
	return nil
}

// talk is the console.
func (f *fakeMonitor) talk(c net.Conn) {
	f.mu.Lock()
	text := f.orders.Console
	f.mu.Unlock()
	_, _ = c.Write([]byte(text))
}

// stream connects to a guest that returns what it receives.
func (f *fakeMonitor) stream(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	f.mu.Lock()
	deaf := f.orders.NoGuest || f.state != "Running"
	f.mu.Unlock()
	if err != nil || deaf || line != "CONNECT 1024\n" {
		return
	}
	_, _ = c.Write([]byte("OK 1073741824\n"))
	_, _ = in.WriteTo(c)
}
