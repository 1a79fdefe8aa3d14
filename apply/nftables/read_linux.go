package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// maxReads is how often tables are read that others change meanwhile.
const maxReads = 5

// read reads both tables as they were at one moment. A family without our table
// has an empty Ruleset. Of affinity maps the backends are read, not the clients.
//
// What others do to tables of their own is no matter: the kernel numbers the
// changes of all tables together, but a listing of what nobody touched is right
// whatever else changes. If our own table changes in each of a number of
// readings, the last one counts: a commit that does not fit what is there is
// refused as a whole, and the change itself leads a daemon to look again. A
// read and a commit may go on at the same time; what the commit changes is then
// read as it was, or as it is.
//
// What they are expected to hold, unless that is nil, is marked there, and not in what is returned.
func (d *Dataplane) read(ctx context.Context, e *expected) (rules.Tables, error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	for try := 1; ; try++ {
		e.reset()
		found, whole, err := d.readOnce(ctx, expectation{expected: e})
		if err == nil {
			d.readAt = time.Now()
		}
		if whole || ctx.Err() != nil {
			return found, err
		}
		if try == maxReads {
			if d.log != nil {
				d.log.Warn("somebody changes the rules while they are read", "table", rules.Table, "tries", try, "err", err)
			}
			return found, err
		}
	}
}

// readFor is read where the tables are expected to have what Programs want.
func (d *Dataplane) readFor(ctx context.Context, want ir.Programs) (state, error) {
	e := &expected{programs: want}
	tables, err := d.read(ctx, e)
	return state{tables, e}, err
}

// readOnce reports, too, whether the tables are whole: nobody changed them meanwhile.
func (d *Dataplane) readOnce(ctx context.Context, e expectation) (tables rules.Tables, whole bool, err error) {
	before, err := d.r.Generation(ctx)
	if err != nil {
		return tables, true, err
	}
	if err := d.listener.Join(); err != nil {
		return tables, true, err
	}
	defer d.listener.Leave()
	e.generation = before
	whole = true
	for _, f := range ir.Families() {
		r, sound, readErr := d.readTable(ctx, f, e)
		whole = whole && sound
		if err = readErr; err != nil {
			break
		}
		*tables.At(f) = r
	}
	after, genErr := d.r.Generation(ctx)
	if genErr != nil {
		return tables, true, errors.Join(err, genErr)
	}
	return tables, whole && !d.listener.Changed(before, after), err
}

// readObjects lists what ours never has.
func (d *Dataplane) readObjects(ctx context.Context, r *rules.Ruleset) error {
	_, err := d.r.List(ctx, unix.NFT_MSG_GETOBJ, codec.Family(r.Family), codec.EncodeTable(rules.Table), func(a codec.Fields) error {
		if a.Text(unix.NFTA_OBJ_TABLE) == rules.Table {
			r.Objects = append(r.Objects, rules.Object{Kind: rules.ObjectKind(a.Uint32(unix.NFTA_OBJ_TYPE)), Name: a.Text(unix.NFTA_OBJ_NAME)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = d.r.List(ctx, unix.NFT_MSG_GETFLOWTABLE, codec.Family(r.Family), codec.EncodeTable(rules.Table), func(a codec.Fields) error {
		if a.Text(codec.NFTAFlowtableTable) == rules.Table {
			r.Objects = append(r.Objects, rules.Object{Kind: rules.Flowtable, Name: a.Text(codec.NFTAFlowtableName)})
		}
		return nil
	})
	return err
}

// readTable reports, too, whether the listing can be relied upon.
func (d *Dataplane) readTable(ctx context.Context, f ir.Family, e expectation) (_ *rules.Ruleset, sound bool, err error) {
	r := &rules.Ruleset{Family: f}
	kubeProxy, err := d.r.Get(ctx, unix.NFT_MSG_GETTABLE, codec.Family(f), codec.EncodeTable(kubeProxyTable))
	if err != nil {
		return nil, true, err
	}
	r.KubeProxy = kubeProxy != nil
	ours, err := d.r.Get(ctx, unix.NFT_MSG_GETTABLE, codec.Family(f), codec.EncodeTable(rules.Table))
	if err != nil || ours == nil {
		return r, true, err
	}
	flags := ours.Uint32(unix.NFTA_TABLE_FLAGS)
	if flags&codec.NFTTableOwner != 0 && !d.mayRead(flags, ours.Uint32(codec.NFTATableOwner)) {
		return nil, true, &apply.Foreign{Object: "table " + f.NFT() + " " + rules.Table, Why: ownedByProcess}
	}
	r.Exists, r.Flags = true, codec.TableFlags(flags)
	if err := d.readObjects(ctx, r); err != nil {
		return nil, true, err
	}
	setsSound, err := d.readSets(ctx, r, e)
	if err != nil {
		return nil, true, err
	}
	chainsSound, err := d.readChains(ctx, r)
	if err != nil {
		return nil, true, err
	}
	if isForeign(r) {
		return nil, true, &apply.Foreign{Object: "table " + f.NFT() + " " + rules.Table, Why: "it has chains or sets, and none of them is proxyc's"}
	}
	return r, setsSound && chainsSound, nil
}

// isForeign reports whether a table has something, but nothing that ours always has.
func isForeign(r *rules.Ruleset) bool {
	fixed := rules.Fixed(&ir.Node{}, r.Family)
	for _, c := range r.Chains {
		if slices.ContainsFunc(fixed.Chains, func(o rules.Chain) bool { return o.Name == c.Name }) {
			return false
		}
	}
	for _, s := range r.Sets {
		if slices.ContainsFunc(fixed.Sets, func(o rules.Set) bool { return o.Name == s.Name }) {
			return false
		}
	}
	return len(r.Chains)+len(r.Sets)+len(r.Objects) > 0
}

// maxListings is how often one list is asked for that the kernel does not give
// as it is. Each takes a small part of the time of a reading.
const (
	maxDumps              = 20
	maxDumpsDuringCommits = 1 // where it is we who change them
)

// canResize reports whether the kernel takes another size of a set that it has, as
// it does since 6.5.
func canResize() bool { return linuxAtLeast(6, 5) }

// linuxAtLeast reports whether this is a version of Linux or a later one.
func linuxAtLeast(major, minor int) bool {
	var u unix.Utsname
	return unix.Uname(&u) == nil && !sysctl.ParseVersion(unix.ByteSliceToString(u.Release[:])).Before(major, minor)
}

func (d *Dataplane) readSets(ctx context.Context, r *rules.Ruleset, e expectation) (sound bool, err error) {
	counts := map[string]int{}
	_, err = d.r.List(ctx, unix.NFT_MSG_GETSET, codec.Family(r.Family), codec.EncodeTable(rules.Table), func(a codec.Fields) error {
		if s, ok := codec.DecodeSet(a, r.Family); ok {
			counts[s.Name] = codec.ElementCount(a)
			s.Port, _ = rules.PortOf(s.Name)
			if !canResize() {
				s.Size = 0
			}
			r.Sets = append(r.Sets, s)
		}
		return nil
	})
	if err != nil {
		return true, err
	}
	sortSets(r.Sets)
	fixed := map[string]bool{}
	for _, s := range rules.Fixed(&ir.Node{}, r.Family).Sets {
		fixed[s.Name] = true
	}
	sound = true
	prints := e.ofFamily(r.Family)
	for i := range r.Sets {
		s := &r.Sets[i]
		if s.Timeout > 0 && s.Unsupported == "" {
			if err := d.readAffinity(ctx, r.Family, s); err != nil {
				return true, err
			}
			continue
		}
		if s.Unsupported != "" || !fixed[s.Name] && !rules.IsSources(s.Name) {
			s.Foreign = true // nobody has looked: it goes as a whole
			continue
		}
		var m *setFingerprints
		id, ok := fixedSet(s.Name)
		if ok && prints != nil {
			m = &prints[id]
			if d.readByKey(ctx, r.Family, s, counts[s.Name], e) {
				continue
			}
		}
		all, err := d.readElements(ctx, r.Family, s, id, m)
		if err == nil && s.Foreign && m != nil { // they go with all that is there
			*m = setFingerprints{}
			all, err = d.readElements(ctx, r.Family, s, id, nil)
		}
		if err != nil {
			return true, err
		}
		sound = sound && all
	}
	return sound, nil
}

// readAffinity finds to which backends an affinity map leads. Its elements
// come and go with connections, so they are not kept.
func (d *Dataplane) readAffinity(ctx context.Context, f ir.Family, s *rules.Set) error {
	some := *s
	seen := map[netip.Addr]bool{}
	var comments codec.Comments
	_, err := d.r.Dump(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementsIn(s.Name), func(b []byte) error {
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

// readElements fills a set. Some time after a commit the kernel moves a set
// that has grown to a larger hash table. A dump goes on, message by message,
// after as many elements as it has given, so that meanwhile it gives some twice
// and as many others not at all: then it is made again. So it is, once more,
// where we change elements meanwhile, which shifts the others. Elements that marks have, unless these are
// nil, are marked there.
func (d *Dataplane) readElements(ctx context.Context, f ir.Family, s *rules.Set, id rules.SetID, m *setFingerprints) (all bool, err error) {
	for try := range maxDumps {
		s.Elements, s.Foreign = s.Elements[:0], false
		if m != nil {
			clear(m.present)
		}
		again := false
		commits := d.commits.Load()
		var comments codec.Comments
		var edges []codec.Edge
		_, err := d.r.Dump(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementsIn(s.Name), func(b []byte) error {
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
			others, marked := m.markPresent(id, some.Elements)
			s.Elements, s.Foreign = append(s.Elements, others...), some.Foreign
			again = again || marked
			return err
		})
		if s.Interval {
			s.Elements, s.Foreign = codec.Intervals(edges)
		}
		if err != nil || !again && !hasDuplicates(s.Elements) && (d.commits.Load() == commits || try >= maxDumpsDuringCommits) {
			return true, err
		}
	}
	return false, nil
}

// hasDuplicates reports whether a key is there more than once.
func hasDuplicates(elements []rules.Element) bool {
	seen := make(map[rules.Key]struct{}, len(elements))
	for i := range elements {
		seen[elements[i].Key] = struct{}{}
	}
	return len(seen) < len(elements)
}

// sortSets brings sets into the order of a Ruleset.
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

func (d *Dataplane) readChains(ctx context.Context, r *rules.Ruleset) (sound bool, err error) {
	if sound, err = d.listChains(ctx, r); err != nil {
		return true, err
	}
	chains := chainsByName(r)
	_, err = d.r.List(ctx, unix.NFT_MSG_GETRULE, codec.Family(r.Family), codec.EncodeTable(rules.Table), func(a codec.Fields) error {
		if a.Text(unix.NFTA_RULE_TABLE) == rules.Table {
			name, rule := codec.DecodeRule(a, r.Family)
			if c := chains[name]; c != nil {
				c.Rules = append(c.Rules, rule)
			}
		}
		return nil
	})
	return sound, err
}

// listChains lists the chains without their rules. It is the one list of which
// the kernel gives all tables' and counts how far it came, so that chains of
// others which come or go before ours can shift it. It is short.
func (d *Dataplane) listChains(ctx context.Context, r *rules.Ruleset) (sound bool, err error) {
	for range maxDumps {
		r.Chains = r.Chains[:0]
		interrupted, err := d.r.List(ctx, unix.NFT_MSG_GETCHAIN, codec.Family(r.Family), codec.EncodeTable(rules.Table), func(a codec.Fields) error {
			if a.Text(unix.NFTA_CHAIN_TABLE) != rules.Table {
				return nil
			}
			c, ok, err := codec.DecodeChain(a)
			if ok {
				c.Port, _ = rules.PortOf(c.Name)
				r.Chains = append(r.Chains, c)
			}
			return err
		})
		if err != nil || !interrupted {
			return true, err
		}
	}
	return false, nil
}
