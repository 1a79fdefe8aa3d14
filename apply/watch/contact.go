package watch

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Contact records, by resource, when an API server was last heard from and whether it can be
// reached. It logs the loss of contact once, and its return once. A Contact is safe for concurrent
// use.
type Contact struct {
	log *slog.Logger
	now func() time.Time

	mu        sync.Mutex
	server    string
	never     bool // nothing had arrived when the outage began
	slow      bool // a request has no answer for slowAfter, and that was logged
	resources map[string]*ResourceState
	outage    ResourceState
}

// ResourceState is the state of one resource.
type ResourceState struct {
	Resource string `json:"resource"` // "services"
	// Last is when the last event, bookmark or initial list arrived; zero if none did.
	Last time.Time `json:"last,omitzero"`
	// Lost is when contact was lost, which may be before this was detected; zero if there is contact.
	Lost  time.Time `json:"lost,omitzero"`
	Cause string    `json:"cause,omitempty"` // of Lost
	Fix   string    `json:"fix,omitempty"`   // fix of Cause, if known
	// Optional reports whether rules can be compiled without the resource. Losing it is no Outage.
	Optional bool `json:"optional,omitempty"`
	// Unavailable is the reason why the server does not serve the resource, or forbids reading it. No
	// events are expected then.
	Unavailable string `json:"notGiven,omitempty"`
	history
}

// history is what decides about the loss of contact, beside what users see.
type history struct {
	failure      string    // Cause without details
	started      time.Time // when a watch last started, or the first request was made
	causeAt      time.Time // when Cause was recorded
	hasBookmarks bool      // bookmarks arrive
	silent       bool      // lost because bookmarks are missing; only an event or list ends that

	returned time.Time // when contact last returned
	before   time.Time // Lost until then
}

// keepLoss keeps the start of an outage if contact returned for a moment only: each of a series of watches
// may break after an event.
func (h *ResourceState) keepLoss(was time.Time, now time.Time) {
	switch {
	case !was.IsZero() && h.Lost.IsZero():
		h.before, h.returned = was, now
	case was.IsZero() && !h.Lost.IsZero() && !h.returned.IsZero() && now.Sub(h.returned) < steadyAfter:
		h.Lost = h.before
	}
}

// silenceLimit returns how long the resource may be without an event before it counts as lost.
func (h *ResourceState) silenceLimit() time.Duration {
	if !h.hasBookmarks && !h.Last.IsZero() { // a server without bookmarks may have nothing to send
		return silentAfter
	}
	return staleAfter
}

const (
	// staleAfter is how long a resource may be without an event or bookmark before it counts as lost.
	// An API server sends a bookmark each minute.
	staleAfter = 3 * time.Minute
	// silentAfter replaces staleAfter for a resource that had objects but no bookmark. A watch lasts
	// at most 10 minutes, as client-go requests, and the server answers the next one.
	silentAfter = 15 * time.Minute
	// steadyAfter is how long contact must last to end an outage for good.
	steadyAfter = 30 * time.Second
	// slowAfter is how long a request may be without an answer before Contact logs that. It counts as
	// lost only after responseTimeout.
	slowAfter = 10 * time.Second
	// silenceCheck is how often Contact checks for silent resources.
	silenceCheck = 10 * time.Second
)

// NewContact returns a Contact without any resource.
func NewContact(log *slog.Logger, now func() time.Time) *Contact {
	return &Contact{log: log, now: now, resources: map[string]*ResourceState{}}
}

// Server returns the address of the API server, as configured.
func (c *Contact) Server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// Resources returns the state of each resource, ordered by name.
func (c *Contact) Resources() []ResourceState {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]ResourceState, 0, len(c.resources))
	for _, name := range slices.Sorted(maps.Keys(c.resources)) {
		out = append(out, *c.resources[name])
	}
	return out
}

// Outage returns the current outage. Lost is zero if there is none.
func (c *Contact) Outage() ResourceState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outage
}

// resourceContact records the contact about one resource.
type resourceContact struct {
	*Contact
	name string // "services"
}

func (c *Contact) resource(name string) resourceContact { return resourceContact{c, name} }

// expect starts to track a resource. A resource that was lost stays lost until something of it
// arrives.
func (r resourceContact) expect(optional bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := ResourceState{Resource: r.name}
	if before := r.resources[r.name]; before != nil {
		h = *before
	}
	h.started, h.Optional, h.Unavailable = r.now(), optional, ""
	r.resources[r.name] = &h
}

// recordUnavailable records that the server does not serve a resource.
func (r resourceContact) recordUnavailable(why string) {
	r.change(func(h *ResourceState) { *h = ResourceState{Resource: r.name, Unavailable: why, Optional: true} })
}

// change applies f to the state of a resource and logs a resulting loss or return of contact.
func (r resourceContact) change(f func(*ResourceState)) {
	r.mu.Lock()
	var was, is ResourceState
	if h := r.resources[r.name]; h != nil {
		was = *h
		f(h)
		h.keepLoss(was.Lost, r.now())
		is = *h
	}
	before, now := r.outage, r.firstOutage()
	r.outage = now
	at := r.now()
	what, back := now.failure, "restored"
	if what == contactLost && !r.heard() {
		what = "there is no contact with the API server yet"
	}
	if r.never {
		back = "established"
	}
	r.never = !now.Lost.IsZero() && (r.never || before.Lost.IsZero() && !r.heard())
	r.mu.Unlock()
	switch {
	case !now.Lost.IsZero() && before.failure != now.failure:
		r.log.Warn(what+": the rules are kept", withFix(now.Fix, "resource", now.Resource, "server", r.Server(), "err", now.Cause)...)
	case !before.Lost.IsZero() && now.Lost.IsZero():
		r.log.Info("contact with the API server is "+back, "after", at.Sub(before.Lost).Round(time.Millisecond), "cause", before.Cause)
	}
	if is.Optional {
		r.logOptional(was, is, at)
	}
}

// logOptional logs the loss or return of an optional resource.
func (r resourceContact) logOptional(was, is ResourceState, at time.Time) {
	switch {
	case was.Lost.IsZero() && !is.Lost.IsZero() && is.Last.IsZero():
		r.log.Warn(r.name+" cannot be read: none were read so far", withFix(is.Fix, "err", is.Cause)...)
	case was.Lost.IsZero() && !is.Lost.IsZero():
		r.log.Warn(r.name+" cannot be read: the rules use the last objects that were read", withFix(is.Fix, "err", is.Cause)...)
	case !was.Lost.IsZero() && is.Lost.IsZero() && is.Unavailable == "":
		r.log.Info(r.name+" can be read again", "after", at.Sub(was.Lost).Round(time.Millisecond))
	}
}

// withFix appends the fix, if known, to log attributes.
func withFix(fix string, args ...any) []any {
	if fix == "" {
		return args
	}
	return append(args, "fix", fix)
}

const contactLost = "contact with the API server is lost"

// failureOf returns a general description of a failed request. A rejected account and an untrusted
// certificate are described separately, since they are fixed differently from a lost connection.
func failureOf(err error) string {
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return "the API server refuses this account"
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	if op, ok := errors.AsType[*net.OpError](err); untrusted || ok && op.Op == "remote error" {
		return "the TLS handshake with the API server fails"
	}
	return contactLost
}

// causeOf returns the text of an error. That of a server that ends has details of HTTP/2 alone.
func causeOf(err error) string {
	if text := err.Error(); !strings.Contains(text, "GOAWAY") || !strings.Contains(text, "ErrCode=NO_ERROR") {
		return text
	}
	return "the server ended the connection (HTTP/2 GOAWAY), as at a restart"
}

// heard reports whether anything ever arrived.
func (c *Contact) heard() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(c.resources)), func(h *ResourceState) bool { return !h.Last.IsZero() })
}

// firstOutage returns the required resource that was lost first.
func (c *Contact) firstOutage() (first ResourceState) {
	for _, name := range slices.Sorted(maps.Keys(c.resources)) {
		if h := c.resources[name]; !h.Optional && !h.Lost.IsZero() && (first.Lost.IsZero() || h.Lost.Before(first.Lost)) {
			first = *h
		}
	}
	return first
}

// recordOpenWatch records that a watch stays open without an event. The resource is current then, unless
// the watch begins with all objects.
func (r resourceContact) recordOpenWatch(all bool) {
	r.change(func(h *ResourceState) {
		if h.started = r.now(); !h.silent && !all {
			h.markFound()
		}
	})
}

// recordEvent records that an event, bookmark or page of a list arrived.
func (r resourceContact) recordEvent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.resources[r.name]; h != nil {
		h.Last = r.now()
	}
}

// recordStored records that everything that arrived is stored: the resource is current. It usually
// is already.
func (r resourceContact) recordStored() {
	r.mu.Lock()
	h := r.resources[r.name]
	lost := h != nil && !h.Lost.IsZero()
	r.mu.Unlock()
	if lost {
		r.change((*ResourceState).markStored)
	}
}

// recordBookmark is recordStored for a bookmark.
func (r resourceContact) recordBookmark() {
	r.change(func(h *ResourceState) { h.hasBookmarks = true; h.markStored() })
}

// recordLoss records that a resource cannot be read.
func (r resourceContact) recordLoss(err error) {
	r.change(func(h *ResourceState) { h.markLost(r.now(), err) })
}

// recordLossUnlessNewer is like lose, but does nothing if a cause was recorded since then.
func (r resourceContact) recordLossUnlessNewer(then time.Time, err error) {
	r.change(func(h *ResourceState) {
		if h.causeAt.Before(then) {
			h.markLost(r.now(), err)
		}
	})
}

func (h *ResourceState) markLost(now time.Time, err error) {
	silent, ok := errors.AsType[*timeoutError](err)
	h.silent = h.silent || ok && h.hasBookmarks && silent.what == noEvent
	if h.Lost.IsZero() {
		if h.Lost = now; ok {
			h.Lost = h.lastActivity()
		}
	}
	h.causeAt, h.Cause, h.Fix, h.failure = now, causeOf(err), Remedy(err), failureOf(err)
}

// markStored is markFound for everything that arrived, unless contact was lost afterwards.
func (h *ResourceState) markStored() {
	if !h.causeAt.After(h.Last) {
		h.markFound()
	}
}

// markFound records that the resource is current.
func (h *ResourceState) markFound() {
	h.Lost, h.Cause, h.Fix, h.failure, h.silent = time.Time{}, "", "", "", false
}

// lastActivity returns when the resource last had an event, or when a watch or the first request
// started.
func (h *ResourceState) lastActivity() time.Time {
	if h.started.After(h.Last) {
		return h.started
	}
	return h.Last
}

// checkSilence marks resources as lost that have been without events for too long.
func (c *Contact) checkSilence() {
	for _, was := range c.Resources() {
		c.resource(was.Resource).change(func(h *ResourceState) {
			if most := h.silenceLimit(); h.Lost.IsZero() && h.Unavailable == "" && c.now().Sub(h.lastActivity()) >= most {
				h.markLost(c.now(), &timeoutError{noEvent, most})
			}
		})
	}
}
