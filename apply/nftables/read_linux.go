package nftables

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// reader reads our tables.
type reader struct {
	readOnly bool
	conn     *conn.Conn
}

// maxReads is how often the tables are read if other programs change nf_tables meanwhile.
const maxReads = 5

// read reads both tables consistently. A missing table is an empty Ruleset. For affinity maps it
// reads the backends, not the clients.
//
// The kernel counts the transactions of all programs together. If there are some during each of
// maxReads reads, the last result is returned: its lists of unchanged tables are correct, the kernel
// rejects a commit that does not match its state, and a change of ours causes another comparison.
//
// Expected elements are marked in e, and not returned. e may be nil.
func (r *reader) read(ctx context.Context, e *expected) (rules.Tables, error) {
	for try := 1; ; try++ {
		have, consistent, err := r.readOnce(ctx, e)
		if consistent || try == maxReads || ctx.Err() != nil {
			return have, err
		}
	}
}

// readExpected is like read. It expects the tables to contain what Programs require.
func (r *reader) readExpected(ctx context.Context, want ir.Programs) (state, error) {
	e := &expected{programs: want}
	tables, err := r.read(ctx, e)
	return state{tables, e}, err
}

// readOnce reads the tables. consistent reports whether no program changed any table meanwhile.
func (r *reader) readOnce(ctx context.Context, e *expected) (tables rules.Tables, consistent bool, err error) {
	before, err := r.conn.Generation(ctx)
	if err != nil {
		return tables, true, err
	}
	e.reset()
	for _, f := range ir.Families() {
		t, readErr := r.readTable(ctx, f, e)
		if err = readErr; err != nil {
			break
		}
		*tables.At(f) = t
	}
	after, genErr := r.conn.Generation(ctx)
	return tables, genErr != nil || before == after, cmp.Or(err, genErr)
}

// readTable reads the table of a family.
func (r *reader) readTable(ctx context.Context, f ir.Family, e *expected) (*rules.Ruleset, error) {
	t := &rules.Ruleset{Family: f}
	kubeProxy, err := r.conn.Get(ctx, unix.NFT_MSG_GETTABLE, codec.Family(f), codec.EncodeTable(kubeProxyTable))
	if err != nil {
		return nil, err
	}
	t.KubeProxy = kubeProxy != nil
	ours, err := r.conn.Get(ctx, unix.NFT_MSG_GETTABLE, codec.Family(f), codec.EncodeTable(rules.Table))
	if err != nil || ours == nil {
		return t, err
	}
	foreign := &apply.Foreign{Object: "table " + f.NFT() + " " + rules.Table}
	flags := ours.Uint32(unix.NFTA_TABLE_FLAGS)
	// A persistent table belongs to proxyc, and read-only programs may read it.
	if flags&codec.NFTTableOwner != 0 && ours.Uint32(codec.NFTATableOwner) != r.conn.PID() && !(r.readOnly && flags&codec.NFTTablePersist != 0) {
		foreign.Why = ownedByProcess
		return nil, foreign
	}
	t.Exists, t.Flags = true, codec.TableFlags(flags)
	for _, read := range [...]func() error{
		func() error { return r.readObjects(ctx, t) },
		func() error { return r.readSets(ctx, t, e) },
		func() error { return r.readChains(ctx, t) },
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	if isForeign(t) {
		foreign.Why = "it has chains or sets, and none of them is proxyc's"
		return nil, foreign
	}
	return t, nil
}

// list lists objects of our table.
func (r *reader) list(ctx context.Context, typ uint16, f ir.Family, each func(codec.Fields) error) error {
	_, err := r.listOf(ctx, typ, f, codec.EncodeTable(rules.Table), each)
	return err
}

// listOf is list for a part of our table.
func (r *reader) listOf(ctx context.Context, typ uint16, f ir.Family, part []byte, each func(codec.Fields) error) (interrupted bool, err error) {
	return r.conn.List(ctx, typ, codec.Family(f), part, func(a codec.Fields) error {
		if a.Text(unix.NFTA_TABLE_NAME) != rules.Table { // the first attribute of all kinds; the kernel may ignore the query
			return nil
		}
		return each(a)
	})
}

// readObjects reads objects and flowtables, which our tables never have.
func (r *reader) readObjects(ctx context.Context, t *rules.Ruleset) error {
	err := r.list(ctx, unix.NFT_MSG_GETOBJ, t.Family, func(a codec.Fields) error {
		t.Objects = append(t.Objects, rules.Object{Kind: rules.ObjectKind(a.Uint32(unix.NFTA_OBJ_TYPE)), Name: a.Text(unix.NFTA_OBJ_NAME)})
		return nil
	})
	if err != nil {
		return err
	}
	return r.list(ctx, unix.NFT_MSG_GETFLOWTABLE, t.Family, func(a codec.Fields) error {
		t.Objects = append(t.Objects, rules.Object{Kind: rules.Flowtable, Name: a.Text(codec.NFTAFlowtableName)})
		return nil
	})
}

// isForeign reports whether a table has content, but none that ours always have.
func isForeign(t *rules.Ruleset) bool {
	fixed := rules.Fixed(&ir.Node{}, t.Family)
	chains, sets := chainsByName(fixed), setsByName(fixed)
	return len(t.Chains)+len(t.Sets)+len(t.Objects) > 0 &&
		!slices.ContainsFunc(t.Chains, func(c rules.Chain) bool { return chains[c.Name] != nil }) &&
		!slices.ContainsFunc(t.Sets, func(s rules.Set) bool { return sets[s.Name] != nil })
}

// maxDumps is the maximum number of dumps of a set that the kernel moves to a larger hash table.
const maxDumps = 20

// canResize reports whether the kernel can change the size of a set, as from Linux 6.5 on.
func canResize() bool {
	var u unix.Utsname
	return unix.Uname(&u) == nil && !sysctl.ParseVersion(unix.ByteSliceToString(u.Release[:])).Before(6, 5)
}

// readSets reads the sets with their elements.
func (r *reader) readSets(ctx context.Context, t *rules.Ruleset, e *expected) error {
	err := r.list(ctx, unix.NFT_MSG_GETSET, t.Family, func(a codec.Fields) error {
		if s, ok := codec.DecodeSet(a, t.Family); ok {
			s.Port, _ = rules.PortOf(s.Name)
			if !canResize() {
				s.Size = 0
			}
			t.Sets = append(t.Sets, s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	sortSets(t.Sets)
	for i := range t.Sets {
		s := &t.Sets[i]
		if err := r.readSet(ctx, t.Family, s, e); err != nil {
			return err
		}
	}
	return nil
}

// readSet reads the elements of a set.
func (r *reader) readSet(ctx context.Context, f ir.Family, s *rules.Set, e *expected) error {
	id, fixed := fixedSet(s.Name)
	if s.Timeout > 0 && s.Unsupported == "" {
		return r.readAffinity(ctx, f, s)
	}
	if s.Unsupported != "" || !fixed && !rules.HasElements(s.Name) {
		s.Foreign = true // the set is removed with its elements
		return nil
	}
	var m *setFingerprints
	if prints := e.ofFamily(f); fixed && prints != nil {
		m = &prints[id]
	}
	err := r.readElements(ctx, f, s, id, m)
	if err == nil && s.Foreign && m != nil { // all elements are replaced
		*m = setFingerprints{}
		err = r.readElements(ctx, f, s, id, nil)
	}
	return err
}

// readAffinity reads the backends in an affinity map. It does not keep the elements, which change
// with each connection.
func (r *reader) readAffinity(ctx context.Context, f ir.Family, s *rules.Set) error {
	some := *s
	seen := map[netip.Addr]bool{}
	var comments codec.Comments
	_, err := r.conn.Dump(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementsIn(s.Name), func(b []byte) error {
		some.Elements = some.Elements[:0]
		err := codec.DecodeElements(b, &some, f, &comments)
		for i := range some.Elements {
			if a := some.Elements[i].To.Addr(); !seen[a] {
				seen[a] = true
				s.Remembered = append(s.Remembered, a)
			}
		}
		return err
	})
	slices.SortFunc(s.Remembered, netip.Addr.Compare)
	s.Permanent, s.Foreign = some.Permanent, some.Foreign
	return err
}

// readElements dumps the elements of a set. If a set has grown, the kernel moves it to a larger
// hash table some time after the commit. A dump continues at the number of elements that it has
// returned so far, so during the move it may repeat some and omit as many others. It is then
// repeated. Elements with a fingerprint in m are marked there, and not kept; m may be nil.
func (r *reader) readElements(ctx context.Context, f ir.Family, s *rules.Set, id rules.SetID, m *setFingerprints) error {
	for range maxDumps {
		s.Elements, s.Foreign = s.Elements[:0], false
		if m != nil {
			clear(m.present)
		}
		repeat := false
		var comments codec.Comments
		var edges []codec.Edge
		_, err := r.conn.Dump(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementsIn(s.Name), func(b []byte) error {
			if s.Interval {
				var err error
				edges, err = codec.DecodeEdges(b, f, edges)
				return err
			}
			if m == nil {
				return codec.DecodeElements(b, s, f, &comments)
			}
			some := *s
			some.Elements = nil
			err := codec.DecodeElements(b, &some, f, &codec.Comments{})
			rest, marked := m.markPresent(id, some.Elements)
			s.Elements, s.Foreign = append(s.Elements, rest...), some.Foreign
			repeat = repeat || marked
			return err
		})
		if s.Interval {
			s.Elements, s.Foreign = codec.Intervals(edges)
		}
		if err != nil || !repeat && !hasDuplicates(s.Elements) {
			return err
		}
	}
	return nil
}

// hasDuplicates reports whether elements have the same key.
func hasDuplicates(elements []rules.Element) bool {
	seen := make(map[rules.Key]struct{}, len(elements))
	for i := range elements {
		seen[elements[i].Key] = struct{}{}
	}
	return len(seen) < len(elements)
}

// sortSets sorts sets in the order of a Ruleset.
func sortSets(sets []rules.Set) {
	fixed := rules.Fixed(&ir.Node{}, ir.IPv4).Sets
	rank := map[string]int{}
	for i := range fixed {
		rank[fixed[i].Name] = i - len(fixed)
	}
	slices.SortFunc(sets, func(a, b rules.Set) int {
		if d := rank[a.Name] - rank[b.Name]; d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// readChains reads the chains with their rules.
func (r *reader) readChains(ctx context.Context, t *rules.Ruleset) error {
	err := r.list(ctx, unix.NFT_MSG_GETCHAIN, t.Family, func(a codec.Fields) error {
		c, ok, err := codec.DecodeChain(a)
		if ok {
			c.Port, _ = rules.PortOf(c.Name)
			t.Chains = append(t.Chains, c)
		}
		return err
	})
	if err != nil {
		return err
	}
	chains := chainsByName(t)
	return r.list(ctx, unix.NFT_MSG_GETRULE, t.Family, func(a codec.Fields) error {
		name, rule := codec.DecodeRule(a, t.Family)
		if c := chains[name]; c != nil {
			c.Rules = append(c.Rules, rule)
		}
		return nil
	})
}
