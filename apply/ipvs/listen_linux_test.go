package ipvs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A deafSocket gives the errors, and the last of them for ever.
type deafSocket struct {
	errs  []error
	asked int
}

func (s *deafSocket) Receive() ([]netlink.Message, error) {
	err := s.errs[min(s.asked, len(s.errs)-1)]
	s.asked++
	return nil, err
}

// A socket that hears nothing any more is told, and asked now and then; news that
// were lost are no reason to wait.
func TestListenerIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &deafSocket{errs: []error{unix.ENOBUFS, unix.ENOBUFS, unix.ENOTSOCK}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		lost, broken := 0, 0
		(&listener{nl: s}).run(ctx, func(err error) {
			switch {
			case err == nil:
				lost++
			case errors.Is(err, unix.ENOTSOCK):
				broken++
			default:
				t.Error(err)
			}
			if s.asked > 1000 {
				t.Error("it does nothing else")
				cancel()
			}
		})
		if most := int(time.Minute/deafFor) + 1; lost != 2 || broken < 2 || broken > most {
			t.Errorf("told %d times of lost news and %d times of the error; want 2, and 2 to %d", lost, broken, most)
		}
	})
}
