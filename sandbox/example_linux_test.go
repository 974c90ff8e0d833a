package sandbox_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
)

// Cells share a live interpreter. The verdict reports failures of the code, err reports failures of the machinery.
func Example() {
	ctx := context.Background()
	backend := local.New(local.Options{}) // no isolation, for development; otherwise use gvisor.New
	sb, err := sandbox.Open(ctx, backend, sandbox.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	for _, code := range []string{"x = 41", "x + 1", "x / 0"} {
		v, err := sb.Cell(ctx, sandbox.Cell{Code: code})
		if err != nil {
			fmt.Println(err)
			return
		}
		switch {
		case v.Error != nil:
			fmt.Println(v.Error.Name, "in line", v.Error.Line)
		case v.Result != nil:
			fmt.Println(v.Result.Text())
		}
	}
	// Output:
	// 42
	// ZeroDivisionError in line 1
}

// A timeout kills everything that the command has started. The verdict has the output so far.
func ExampleSandbox_Run() {
	ctx := context.Background()
	sb, err := sandbox.Open(ctx, local.New(local.Options{}), sandbox.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	v, err := sb.Run(ctx, sandbox.Command{
		Args:       []string{"sort", "-r"},
		RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("a\nb\n")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: %q\n", v, v.Stdout)
	v, err = sb.Run(ctx, sandbox.Command{
		Shell:      "echo begun; sleep 100",
		RunOptions: sandbox.RunOptions{Timeout: 500 * time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: %q\n", v.Ended, v.Stdout)
	// Output:
	// exit status 0: "b\na\n"
	// timeout: "begun\n"
}

// Code in the sandbox calls a function of the host with recluse.call.
func ExampleSandbox_OnHostCall() {
	ctx := context.Background()
	sb, err := sandbox.Open(ctx, local.New(local.Options{}), sandbox.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	sb.OnHostCall(func(_ context.Context, call sandbox.HostCall) ([]byte, error) {
		if call.Name != "greet" {
			return nil, fmt.Errorf("unknown function %q", call.Name) // raised in the code as recluse.CallError
		}
		return fmt.Appendf(nil, "hello %s", call.Payload), nil
	})
	v, err := sb.Cell(ctx, sandbox.Cell{Code: "import recluse\nrecluse.call('greet', 'Ada').decode()"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(v.Result.Text())
	// Output: 'hello Ada'
}
