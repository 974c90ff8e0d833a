package session

import (
	"context"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// asked puts a question to a backend, and waits no longer than that for the answer: a backend that is a service of its own may stall, and
// then whoever asked it would wait for ever, and with him a server that starts, a collection, or everybody who needs an image.
func asked[T any](ctx context.Context, b sandbox.Backend, wait time.Duration, question func(ctx context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answer, err := question(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil { // it is not the caller who has given up
		err = &sandbox.Error{
			Code: sandbox.CodeBackendMissing, Op: "ask backend", Message: fmt.Sprintf("the %s backend does not answer: nothing came within %s", b.Name(), wait),
			Remedy: "see whether its service works; until it answers, what it holds is left as it is", Retry: true, Err: err,
		}
	}
	return answer, err
}

// told is asked for a request that has no answer but that it was done.
func told(ctx context.Context, b sandbox.Backend, wait time.Duration, request func(ctx context.Context) error) error {
	_, err := asked(ctx, b, wait, func(ctx context.Context) (struct{}, error) { return struct{}{}, request(ctx) })
	return err
}
