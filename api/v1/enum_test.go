package v1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The values in the enum tag of a field are the constants of its type, and every field of the API is described.
func TestTagsAgreeWithConstants(t *testing.T) {
	set := token.NewFileSet()
	packages, err := parser.ParseDir(set, ".", nil, 0) //nolint:staticcheck // one package without build constraints
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string][]string{}
	var fields []*ast.Field
	for _, file := range packages["v1"].Files {
		if strings.HasSuffix(set.File(file.Pos()).Name(), "_test.go") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if of, ok := n.Type.(*ast.Ident); ok && len(n.Values) == 1 {
					if value, ok := n.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
						text, _ := strconv.Unquote(value.Value)
						constants[of.Name] = append(constants[of.Name], text)
					}
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok && n.Name.IsExported() {
					fields = append(fields, s.Fields.List...)
				}
			}
			return true
		})
	}
	for _, f := range fields {
		if f.Tag == nil {
			continue
		}
		text, _ := strconv.Unquote(f.Tag.Value)
		tag := reflect.StructTag(text)
		if name := tag.Get("json"); name != "" && name != "-" && tag.Get("doc") == "" {
			t.Errorf("%s: field %s has no description", set.Position(f.Pos()), f.Names[0])
		}
		of, ok := f.Type.(*ast.Ident)
		if !ok || constants[of.Name] == nil || of.Name == "Code" || of.Name == "OmittedWhy" {
			continue
		}
		got, want := strings.Split(tag.Get("enum"), ","), constants[of.Name]
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s: the values of %s are %v, and its constants %v", set.Position(f.Pos()), f.Names[0], got, want)
		}
	}
}
