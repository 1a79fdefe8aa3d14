package socket

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
)

// route opens an rtnetlink Socket in a new namespace that no thread is in when the Socket dials
// again.
func route(t *testing.T, groups ...uint32) (s *Socket, ip func(args string)) {
	t.Helper()
	ns := applytest.RequireNamespace(t)
	err := ns.Do(func() (err error) {
		s, err = Dial(Config{Protocol: unix.NETLINK_ROUTE, Setup: func(nl *netlink.Conn) (err error) {
			for _, g := range groups {
				err = errors.Join(err, nl.JoinGroup(g))
			}
			return err
		}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, func(args string) {
		t.Helper()
		if out, err := ns.Run(ns.Command(t.Context(), "ip", strings.Fields(args)...)); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
}

var listLinks = netlink.Message{
	Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Dump},
	Data:   make([]byte, unix.SizeofIfInfomsg),
}

// links returns the names of the interfaces.
func links(ctx context.Context, s *Socket) (names string, err error) {
	_, err = s.Ask(ctx, listLinks, func(data []byte) error {
		attrs, err := netlink.UnmarshalAttributes(data[unix.SizeofIfInfomsg:])
		for _, a := range attrs {
			if a.Type == unix.IFLA_IFNAME {
				names += unix.ByteSliceToString(a.Data) + " "
			}
		}
		return err
	})
	return names, err
}

// After an exchange that did not read its answers, the next is answered in the
// same namespace, by a new connection.
func TestDialsAgain(t *testing.T) {
	s, ip := route(t)
	ip("link add only-here type bridge")
	failure := errors.New("injected")
	for _, c := range []struct {
		name string
		fail func() error
	}{
		{"a receive fails", func() error {
			s.Fault = failing("recvfrom", unix.ENOBUFS, 1)
			defer func() { s.Fault = nil }()
			_, err := links(t.Context(), s)
			return err
		}},
		{"the second receive fails", func() error {
			s.Fault = failing("recvfrom", unix.ENOMEM, 2)
			defer func() { s.Fault = nil }()
			_, err := links(t.Context(), s)
			return err
		}},
		{"a send fails", func() error {
			s.Fault = failing("sendmsg", unix.EAGAIN, 1)
			defer func() { s.Fault = nil }()
			_, err := links(t.Context(), s)
			return err
		}},
		{"signals interrupt each send", func() error {
			s.Fault = failing("sendmsg", unix.EINTR, 0)
			defer func() { s.Fault = nil }()
			_, err := links(t.Context(), s)
			return err
		}},
		{"signals interrupt each receive", func() error {
			s.Fault = failing("recvfrom", unix.EINTR, 0)
			defer func() { s.Fault = nil }()
			_, err := links(t.Context(), s)
			return err
		}},
		{"the reader fails", func() error {
			_, err := s.Ask(t.Context(), listLinks, func([]byte) error { return failure })
			return err
		}},
		{"the deadline passes", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			return s.Do(ctx, func(c *Conn) error {
				for _, err := range c.Answers() {
					return err
				}
				return nil
			})
		}},
	} {
		was := s.PID()
		if err := c.fail(); err == nil {
			t.Errorf("%s: no error", c.name)
		}
		if s.PID() == was {
			t.Errorf("%s: the connection stays", c.name)
		}
		if names, err := links(t.Context(), s); names != "lo only-here " || err != nil {
			t.Errorf("%s, and then: %q, %v", c.name, names, err)
		}
	}
}

// failing returns a Fault that makes the n-th call fail, or all if n is 0.
func failing(call string, err error, n int) func(string) error {
	made := 0
	return func(is string) error {
		if is == call {
			made++
		}
		if is == call && (n == 0 || made == n) {
			return err
		}
		return nil
	}
}

// A system call that a signal interrupts is repeated at once: the kernel reports no event to wait for.
func TestInterruptedCalls(t *testing.T) {
	s, _ := route(t)
	was, calls := s.PID(), 0
	s.Fault = func(string) error {
		if calls++; calls%2 == 1 {
			return unix.EINTR
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	if names, err := links(ctx, s); names != "lo " || err != nil || s.PID() != was || calls < 4 {
		t.Errorf("%q, %v, after %d calls; same connection: %t", names, err, calls, s.PID() == was)
	}
}

// Exchanges of several goroutines get the answers to their own requests.
func TestExchangesAreApart(t *testing.T) {
	s, _ := route(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				if names, err := links(t.Context(), s); names != "lo " || err != nil {
					t.Errorf("%q, %v", names, err)
				}
			}
		})
	}
	all.Wait()
}

// A refusal is an answer: the connection stays.
func TestRefusalKeepsConnection(t *testing.T) {
	s, _ := route(t)
	was := s.PID()
	_, err := s.Ask(t.Context(), netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK},
		Data:   binary.NativeEndian.AppendUint32(make([]byte, 4, unix.SizeofIfInfomsg), 4711)[:unix.SizeofIfInfomsg:unix.SizeofIfInfomsg],
	}, func([]byte) error { return nil })
	if !errors.Is(err, unix.ENODEV) || !IsRejection(err) || s.PID() != was {
		t.Errorf("%v; refused: %t, same connection: %t", err, IsRejection(err), s.PID() == was)
	}
}

// An answer that was lost is waited for no longer than Timeout.
func TestTimeout(t *testing.T) {
	s, err := Dial(Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := time.Now()
	err = s.Do(t.Context(), func(c *Conn) error {
		for _, err := range c.receiveAll(time.Millisecond) {
			return err
		}
		return nil
	})
	if took := time.Since(began); !errors.Is(err, errNoAnswer) || took > Timeout/2 {
		t.Errorf("%v after %s", err, took)
	}
}

// RetryInterrupted repeats an interrupted read, reported in either way, a limited number of times.
func TestWhole(t *testing.T) {
	for _, c := range []struct {
		interrupted int
		err, want   error
		tries       int
	}{
		{0, nil, nil, 1},
		{0, unix.EPERM, unix.EPERM, 1},
		{3, nil, nil, 4},
		{3, unix.EINTR, nil, 4},
		{99, nil, ErrInterrupted, maxAttempts},
		{99, unix.EINTR, ErrInterrupted, maxAttempts},
	} {
		tries := 0
		err := RetryInterrupted(func() (bool, error) {
			if tries++; tries <= c.interrupted {
				return c.err == nil, c.err
			}
			if c.interrupted > 0 {
				return false, nil
			}
			return false, c.err
		})
		if err != c.want || tries != c.tries {
			t.Errorf("interrupted %d times with %v: %v after %d tries, want %v after %d", c.interrupted, c.err, err, tries, c.want, c.tries)
		}
	}
}

// Notifications continue after an error. Missed ones are reported after the Socket receives again.
func TestFollow(t *testing.T) {
	s, ip := route(t, unix.RTNLGRP_LINK)
	fail := make(chan error, 1)
	s.Fault = func(string) error {
		select {
		case err := <-fail:
			return err
		default:
			return nil
		}
	}
	got := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Follow(ctx, func(netlink.Message) { got <- "news" }, func(err error) { got <- "lost: " + err.Error() })
	}()
	wait := func(want string) {
		t.Helper()
		for limit := time.After(applytest.ScaledTimeout(10 * time.Second)); ; {
			select {
			case is := <-got:
				if is == want {
					return
				}
			case <-limit:
				t.Fatalf("no %q", want)
			}
		}
	}
	ip("link add x0 type bridge")
	wait("news")
	fail <- unix.ENOMEM
	ip("link add x1 type bridge") // wakes the pending receive
	wait("lost: recvfrom: cannot allocate memory")
	ip("link add x2 type bridge")
	wait("news")
	cancel()
	<-ended
}

// A Socket that only fails is retried at growing intervals.
func TestFollowPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Dial(Config{Protocol: unix.NETLINK_ROUTE})
		if err != nil {
			t.Fatal(err)
		}
		s.Fault = func(string) error { return unix.ENOBUFS }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		lost := 0
		s.Follow(ctx, func(netlink.Message) {}, func(error) {
			if lost++; lost > 1000 {
				t.Error("it does nothing else")
				cancel()
			}
		})
		if most := int(time.Minute/maxPause) + 5; lost < 5 || lost > most {
			t.Errorf("reported %d times in a minute, want 5 to %d", lost, most)
		}
	})
}

// The forms of the kernel's refusals.
func TestRefusal(t *testing.T) {
	text := func(typ uint16, s string) []byte {
		ae := netlink.NewAttributeEncoder()
		ae.String(typ, s)
		b, err := ae.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	code := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EPERM)+1)
	header := append(binary.NativeEndian.AppendUint32(nil, 20), make([]byte, 12)...)
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	message := text(unix.NLMSGERR_ATTR_MSG, "no")
	for _, c := range []struct {
		name string
		typ  netlink.HeaderType
		flag netlink.HeaderFlags
		data []byte
		want error
		text string
	}{
		{"an answer", unix.RTM_NEWLINK, 0, code, nil, ""},
		{"an acknowledgement", netlink.Error, 0, make([]byte, 20), nil, ""},
		{"the end of a list", netlink.Done, netlink.Multi, make([]byte, 4), nil, ""},
		{"an end of a list without a number", netlink.Done, netlink.Multi, nil, nil, ""},
		{"an error in a list", netlink.Done, netlink.Multi, code, unix.EPERM, ""},
		{"an error in a list with a text", netlink.Done, netlink.Multi | netlink.AcknowledgeTLVs, join(code, message), unix.EPERM, "no"},
		{"an error", netlink.Error, 0, join(code, header), unix.EPERM, ""},
		{"an error with its request and a text", netlink.Error, netlink.AcknowledgeTLVs, join(code, header, make([]byte, 4), message), unix.EPERM, "no"},
		{"an error with a header and a text", netlink.Error, netlink.AcknowledgeTLVs | 0x100, join(code, header, message), unix.EPERM, "no"},
		{"an error whose request is cut off", netlink.Error, netlink.AcknowledgeTLVs, join(code, header), unix.EPERM, ""},
	} {
		err := rejectionOf(netlink.Message{Header: netlink.Header{Type: c.typ, Flags: c.flag, Sequence: 7}, Data: c.data})
		var op *netlink.OpError
		if !errors.Is(err, c.want) || errors.As(err, &op) && (op.Message != c.text || !IsRejection(err)) {
			t.Errorf("%s: %v, want %v %q", c.name, err, c.want, c.text)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(make([]byte, 20))
	f.Add(append(binary.NativeEndian.AppendUint32(nil, 16), make([]byte, 13)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := 0
		for m, err := range messages(data) {
			if n++; n > len(data) {
				t.Fatal("no end")
			}
			if err == nil {
				rejectionOf(m)
			}
		}
	})
}

// New succeeds while no file can be opened. The first exchange later opens what is needed.
func TestNewWithoutFiles(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}, nil); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Protocol: unix.NETLINK_ROUTE})
	var refused error
	if err == nil {
		refused = s.Connect()
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if refused == nil {
		t.Error("connected without files")
	}
	if err := s.Connect(); err != nil {
		t.Error(err)
	}
}
