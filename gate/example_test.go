package gate_test

import (
	"context"
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/sandbox"
)

func Example() {
	set, err := rules.Default()
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := gate.New(gate.Options{Rules: set, RulesMode: gate.ModeBlock})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	d, err := c.Judge(context.Background(), gate.Request{Language: gate.Bash, Code: "dir=/\nrm -rf $dir"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Action)
	fmt.Println(d.Findings[0])
	// Output:
	// deny
	// line 2: removes /, which the machine needs: rule no-root-removal
}

// For code that may not run, Enforce returns an error with a reason for the model that wrote it.
func ExampleEnforce() {
	set, err := rules.Default()
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := gate.New(gate.Options{Rules: set, RulesMode: gate.ModeBlock})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for _, command := range []sandbox.Command{{Args: []string{"ls", "/"}}, {Shell: "chmod -R 777 /"}} {
		d, err := gate.Enforce(context.Background(), c, gate.CommandRequest(command, sandbox.Spec{}))
		fmt.Printf("%s %q\n", d.Action, v1.CodeOf(err))
	}
	// Output:
	// allow ""
	// deny "refused_by_gate"
}

// A person decides where the rules say ask. A grant allows one run of exactly this code.
func ExampleApprovals() {
	ctx := context.Background()
	set, err := rules.Default()
	if err != nil {
		fmt.Println(err)
		return
	}
	approvals := gate.NewApprovals(0)
	c, err := gate.New(gate.Options{Rules: set, RulesMode: gate.ModeBlock, Approvals: approvals})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	push := gate.Request{Language: gate.Bash, Code: "git push --force", Session: "work"}
	d, err := c.Judge(ctx, push)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Action)
	if _, err := approvals.Resolve(d.Approval, gate.Answer{Grant: true, By: "ann", Note: "the branch is mine"}); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		d, err := c.Judge(ctx, push)
		fmt.Println(d.Action, err)
	}
	// Output:
	// ask
	// allow <nil>
	// ask <nil>
}
