package compiler

import (
	"strconv"
	"time"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Limits of the API for sessionAffinityConfig.clientIP.timeoutSeconds (session
// affinity, SNAP-26).
const (
	defaultAffinity = 10800 // seconds
	longestAffinity = 86400 // seconds
)

// affinityPass returns the session affinity of all pools of a Service, or nil for
// none. A missing or invalid timeout becomes the API's default.
func (s *service) affinityPass() *ir.Affinity {
	if !s.AffinityIP {
		return nil
	}
	a := &ir.Affinity{Timeout: time.Duration(s.AffinitySecs) * time.Second,
		Origin: ir.Origin{Object: s.object, Field: affinityField}}
	if !s.affinityValid() {
		a.Timeout = defaultAffinity * time.Second
		a.Origin.Field, a.Origin.Reason = "spec.sessionAffinity", "default timeout"
	}
	return a
}

const affinityField = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"

func (s *service) affinityValid() bool {
	return s.AffinitySecs > 0 && s.AffinitySecs <= longestAffinity
}

// checkAffinity reports a timeout outside the API's range. 0 means not set.
func (s *service) checkAffinity() {
	if s.AffinityIP && s.AffinitySecs != 0 && !s.affinityValid() {
		s.report(diag.AffinityTimeout, affinityField, "must be 1-"+strconv.Itoa(longestAffinity)+" seconds, got "+strconv.Itoa(int(s.AffinitySecs))+
			": "+strconv.Itoa(defaultAffinity)+" counts")
	}
}
