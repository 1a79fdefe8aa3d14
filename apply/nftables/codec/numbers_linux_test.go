package codec

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Attributes have names: no call that writes or reads one, no index and no case
// of a switch has a number in its place.
func TestAttributesHaveNames(t *testing.T) {
	var files []string
	for _, dir := range []string{".", "..", "../conn"} {
		all, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, all...)
	}
	found := 0
	for _, name := range files {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			for _, e := range attributesIn(n) {
				found++
				if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.INT {
					t.Errorf("%s: attribute %s has no name", set.Position(lit.Pos()), lit.Value)
				}
			}
			return true
		})
	}
	if found < 150 {
		t.Errorf("found %d attributes, want 150 at least", found)
	}
}

// withAttribute are the methods and functions that take an attribute's number, by its place.
var withAttribute = map[string]int{
	"Uint32": 0, "Uint64": 0, "Text": 0, "Bytes": 0, "header": 0, "Open": 0, "under": 0,
	"value": 0, "Nest": 0, "First": 1, "inTable": 1,
}

// attributesIn returns the expressions of a node that stand for attributes.
func attributesIn(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.CallExpr:
		name := ""
		switch f := n.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
		}
		if at, ok := withAttribute[name]; ok && len(n.Args) > at {
			return n.Args[at : at+1]
		}
	case *ast.IndexExpr:
		if s, ok := n.X.(*ast.SelectorExpr); ok && s.Sel.Name == "Fields" {
			return []ast.Expr{n.Index}
		}
	case *ast.SwitchStmt:
		s, ok := n.Tag.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Type" {
			return nil
		}
		var all []ast.Expr
		for _, c := range n.Body.List {
			all = append(all, c.(*ast.CaseClause).List...)
		}
		return all
	case *ast.BinaryExpr:
		if s, ok := n.X.(*ast.SelectorExpr); ok && s.Sel.Name == "Type" {
			return []ast.Expr{n.Y}
		}
	}
	return nil
}

// The numbers that x/sys/unix lacks are those of the kernel's header, which
// counts them in its enumerations.
func TestNumbersAreTheKernels(t *testing.T) {
	const header = "/usr/include/linux/netfilter/nf_tables.h"
	text, err := os.ReadFile(header)
	if err != nil {
		t.Skip(err)
	}
	numbers := enumerated(string(text))
	// It is read right: these x/sys/unix has.
	for name, want := range map[string]int{"NFTA_SET_USERDATA": unix.NFTA_SET_USERDATA, "NFTA_CT_DIRECTION": unix.NFTA_CT_DIRECTION,
		"NFT_MSG_DELFLOWTABLE": unix.NFT_MSG_DELFLOWTABLE, "NFT_GOTO": unix.NFT_GOTO, "NFT_SET_EVAL": unix.NFT_SET_EVAL} {
		if numbers[name] != want {
			t.Fatalf("%s: read %d, want %d", name, numbers[name], want)
		}
	}
	ours := map[string]int{
		"NFTA_CHAIN_FLAGS": nftaChainFlags, "NFT_CHAIN_BINDING": nftChainBinding,
		"NFTA_SET_EXPR": nftaSetExpr, "NFTA_SET_EXPRESSIONS": nftaSetExpressions,
		"NFTA_BITWISE_OP": nftaBitwiseOp, "NFT_BITWISE_MASK_XOR": nftBitwiseMaskXor, "NFT_BITWISE_BOOL": nftBitwiseMaskXor,
		"NFT_TABLE_F_OWNER": NFTTableOwner, "NFTA_TABLE_OWNER": NFTATableOwner, "NFT_TABLE_F_PERSIST": NFTTablePersist,
		"NFTA_FLOWTABLE_TABLE": NFTAFlowtableTable, "NFTA_FLOWTABLE_NAME": NFTAFlowtableName,
	}
	known := 0
	for name, got := range ours {
		if want, ok := numbers[name]; ok {
			known++
			if got != want {
				t.Errorf("%s: %d, and in %s %d", name, got, header, want)
			}
		}
	}
	if known < len(ours)-3 { // older headers lack some
		t.Errorf("%s has %d of %d", header, known, len(ours))
	}
}

var (
	comment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	enum    = regexp.MustCompile(`(?s)enum\s+\w*\s*\{(.*?)\}`)
	shift   = regexp.MustCompile(`^\(?(-?\w+)(?:\s*<<\s*(\w+))?\)?$`)
)

// enumerated returns the numbers of the names in C's enumerations.
func enumerated(c string) map[string]int {
	all := map[string]int{}
	for _, e := range enum.FindAllStringSubmatch(comment.ReplaceAllString(c, ""), -1) {
		next := 0
		for entry := range strings.SplitSeq(e[1], ",") {
			name, value, given := strings.Cut(strings.TrimSpace(strings.Split(strings.TrimSpace(entry)+"\n", "\n")[0]), "=")
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			if m := shift.FindStringSubmatch(strings.TrimSpace(value)); given && m != nil {
				n, err1 := strconv.ParseInt(m[1], 0, 64)
				bits, err2 := strconv.ParseInt("0"+m[2], 0, 64)
				if slices.ContainsFunc([]error{err1, err2}, func(err error) bool { return err != nil }) {
					continue
				}
				next = int(n) << bits
			}
			all[name] = next
			next++
		}
	}
	return all
}
