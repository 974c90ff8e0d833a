package gate_test

import (
	"context"
	"fmt"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/rules"
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
