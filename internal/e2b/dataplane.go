package e2b

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// maxMessage is the size of a message of a remote procedure call.
const maxMessage = 8 << 20

// dataPlane returns the routes for the inside of a sandbox.
func (h *Handler) dataPlane() *http.ServeMux {
	mux := http.NewServeMux()
	route := func(pattern string, f func(d *inside) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ses, r, ok := h.holder(w, r)
			if !ok {
				return
			}
			if err := f(&inside{Handler: h, ses: ses, w: w, r: r}); err != nil {
				failWith(w, err)
			}
		})
	}
	route("GET /health", func(d *inside) error { d.w.WriteHeader(http.StatusNoContent); return nil })
	route("GET /envs", func(d *inside) error { return d.reply(d.ses.Info().Spec.Env) })
	route("GET /metrics", (*inside).metrics)
	route("GET /files", (*inside).download)
	route("POST /files", (*inside).upload)
	route("POST /execute", (*inside).execute)
	route("GET /contexts", (*inside).contexts)
	route("POST /contexts", (*inside).newContext)
	route("DELETE /contexts/{id}", (*inside).removeContext)
	route("POST /contexts/{id}/restart", (*inside).restartContext)
	rpc := http.NewServeMux()
	h.processService(rpc)
	h.fileService(rpc)
	for _, service := range []string{"/process.Process/", "/filesystem.Filesystem/"} {
		route(service, func(d *inside) error {
			rpc.ServeHTTP(d.w, d.r.WithContext(context.WithValue(d.r.Context(), insideKey{}, d)))
			return nil
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "this server does not have this path or method of the sandbox")
	})
	return mux
}

// inside is one request of the data plane.
type inside struct {
	*Handler
	ses *session.Session
	w   http.ResponseWriter
	r   *http.Request
}

type insideKey struct{}

func (d *inside) reply(body any) error {
	reply(d.w, http.StatusOK, body)
	return nil
}

// defaultUser is the name of the sandbox's own user.
const defaultUser = "user"

// user returns the user that a request names, in the form of sandbox.RunOptions.User: "" is the sandbox's own.
func (d *inside) user() (string, error) {
	name := d.r.URL.Query().Get("username")
	if a := d.r.Header.Get("Authorization"); a != "" {
		kind, text, _ := strings.Cut(a, " ")
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil || !strings.EqualFold(kind, "basic") {
			return "", invalid("the authorization header names no user")
		}
		name, _, _ = strings.Cut(string(b), ":")
	}
	if name == defaultUser {
		name = ""
	}
	return name, nil
}

// files returns the files of the sandbox. They are used with the rights of its own user.
func (d *inside) files() (v1.FileSystem, error) {
	name, err := d.user()
	if err != nil {
		return nil, err
	}
	if name != "" {
		return nil, unsupportedOption(fmt.Sprintf("user %.40q for files: they are used with the rights of the user %q", name,
			defaultUser))
	}
	return d.ses.Files(), nil
}

// unsupportedOption returns the error for a value that this server does not support. The SDKs show it as an invalid
// argument.
func unsupportedOption(what string) error { return invalid(what + " is not supported by this server") }

// path returns a path as the file system takes it: ~ is the home directory, in which relative paths start.
func path(name string) string {
	if name == "~" {
		return ""
	}
	return strings.TrimPrefix(name, "~/")
}

// unary adds a call with one request and one answer.
func unary[In, Out any](
	mux *http.ServeMux, procedure string, f func(d *inside, ctx context.Context, in *In) (*Out, error),
) {
	mux.Handle(procedure, connect.NewUnaryHandler(procedure,
		func(ctx context.Context, r *connect.Request[In]) (*connect.Response[Out], error) {
			if err := checkUnknown(r.Any()); err != nil {
				return nil, err
			}
			out, err := f(ctx.Value(insideKey{}).(*inside), ctx, r.Msg) //nolint:forcetypeassert // set for all calls
			if err != nil {
				return nil, rpcError(err)
			}
			return connect.NewResponse(out), nil
		}, rpcOptions()...))
}

// streaming adds a call whose answer is a stream.
func streaming[In, Out any](
	mux *http.ServeMux,
	procedure string,
	f func(d *inside, ctx context.Context, in *In, s *connect.ServerStream[Out]) error,
) {
	mux.Handle(procedure, connect.NewServerStreamHandler(procedure,
		func(ctx context.Context, r *connect.Request[In], s *connect.ServerStream[Out]) error {
			if err := checkUnknown(r.Any()); err != nil {
				return err
			}
			err := f(ctx.Value(insideKey{}).(*inside), ctx, r.Msg, s) //nolint:forcetypeassert // set for all calls
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the time of the request is over"))
			}
			return rpcError(err)
		}, rpcOptions()...))
}

func rpcOptions() []connect.HandlerOption {
	return []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage), connect.WithCodec(strictJSON{})}
}

// checkUnknown refuses a message in binary form with fields that we do not know.
func checkUnknown(message any) error {
	if m, ok := message.(proto.Message); ok && len(m.ProtoReflect().GetUnknown()) > 0 {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the request has an option that is not supported"))
	}
	return nil
}

// strictJSON is the JSON codec of Connect, which refuses unknown fields instead of dropping them.
type strictJSON struct{}

// Name implements connect.Codec.
func (strictJSON) Name() string { return "json" }

// Marshal implements connect.Codec.
func (strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", message)
	}
	return protojson.MarshalOptions{}.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (strictJSON) Unmarshal(b []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", message)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return errors.New("zero-length payload is not a valid JSON object")
	}
	return protojson.Unmarshal(b, m)
}
