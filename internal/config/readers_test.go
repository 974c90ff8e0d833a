package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// uses records which fields of which sections the program reads. It goes by names, not by types: a section is
// recognized by its field of Config, or by a receiver, parameter or variable of its type.
type uses struct {
	sections map[string]string          // from the name of the type to the field of Config
	read     map[string]map[string]bool // by field of Config
}

// ofType returns the section that a type expression names, or "".
func (u *uses) ofType(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return u.ofType(t.X)
	case *ast.Ident:
		return u.sections[t.Name]
	case *ast.SelectorExpr:
		if x, ok := t.X.(*ast.Ident); ok && x.Name == "config" {
			return u.sections[t.Sel.Name]
		}
	}
	return ""
}

// file records what a file reads.
func (u *uses) file(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			u.function(f.Name.Name == "config", fn)
		}
	}
}

func (u *uses) function(inside bool, fn *ast.FuncDecl) {
	vars := map[string]string{} // section by variable
	for _, list := range []*ast.FieldList{fn.Recv, fn.Type.Params} {
		if list == nil {
			continue
		}
		for _, p := range list.List {
			_, local := p.Type.(*ast.Ident)
			for _, name := range p.Names {
				if s := u.ofType(p.Type); s != "" && (inside || !local) {
					vars[name.Name] = s
				}
			}
		}
	}
	section := func(e ast.Expr) string {
		switch x := e.(type) {
		case *ast.Ident:
			return vars[x.Name]
		case *ast.SelectorExpr:
			if u.read[x.Sel.Name] != nil {
				return x.Sel.Name
			}
		}
		return ""
	}
	written := map[ast.Expr]bool{}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.AssignStmt:
			for i, left := range x.Lhs {
				written[left] = true
				if id, ok := left.(*ast.Ident); ok && len(x.Lhs) == len(x.Rhs) && section(x.Rhs[i]) != "" {
					vars[id.Name] = section(x.Rhs[i])
				}
			}
		case *ast.SelectorExpr:
			if s := section(x.X); s != "" && !written[x] {
				u.read[s][x.Sel.Name] = true
			}
		}
		return true
	})
}

func TestEveryKeyHasAReader(t *testing.T) {
	u := &uses{sections: map[string]string{}, read: map[string]map[string]bool{}}
	for f := range reflect.TypeFor[Config]().Fields() {
		if f.Tag.Get("key") != "" {
			u.sections[f.Type.Name()], u.read[f.Name] = f.Name, map[string]bool{}
		}
	}
	u.sections["Service"], u.read["Service"] = "Service", map[string]bool{} // a part of sections
	for _, dir := range []string{"..", "../../cmd/recluse"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil {
				u.file(f)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	keys := 0
	for s := range reflect.TypeFor[Config]().Fields() {
		if s.Tag.Get("key") == "" {
			continue
		}
		if s.Type == reflect.TypeFor[v1.Limits]() {
			keys += s.Type.NumField() // TestSandboxLimitsAreThoseThatSomebodySet reads each
			continue
		}
		if s.Type == reflect.TypeFor[v1.Quota]() {
			// ServerQuota returns all of them; TestEveryBoundIsEnforced of package session checks each
			keys += len(fields(s.Tag.Get("key")))
			continue
		}
		for _, f := range reflect.VisibleFields(s.Type) {
			names := strings.Fields(f.Tag.Get("key"))
			if f.Type == reflect.TypeFor[v1.RunLimits]() {
				for _, l := range (&v1.RunLimits{}).Fields() {
					names = append(names, l.Flag)
				}
			}
			read := u.read[s.Name][f.Name]
			if len(f.Index) > 1 {
				read = u.read["Service"][f.Name]
			}
			if keys += len(names); len(names) > 0 && !read {
				t.Errorf("nothing reads %s.%v", s.Tag.Get("key"), names)
			}
		}
	}
	if keys != len(all()) {
		t.Errorf("%d keys were looked for, there are %d", keys, len(all()))
	}
}
