// Package socket is a netlink socket that recovers from errors.
//
// An exchange is a request and all of its answers. If an exchange ends in any
// other way than by the kernel's last answer, answers may still be queued, and
// the next exchange would read them as its own. The connection is therefore
// closed after any error that is not a refusal by the kernel, and the next
// exchange dials a new one in the same network namespace. No receive waits
// longer than Timeout.
package socket
