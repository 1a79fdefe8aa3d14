package serve

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// ListenUnix listens on a path that only the owner may open. It creates the directory, since the lock
// may create the same one later. It replaces the socket of a process that died. Closing the listener
// removes the path. It is an error if another process accepts connections there.
func ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%s: another process answers there", path)
	}
	next := path + ".next" // so that no process can connect before the mode is set
	for _, replaced := range [...]string{path, next} {
		if info, err := os.Lstat(replaced); err == nil && info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s: must be free or a socket, is %s", replaced, info.Mode())
		}
	}
	os.Remove(next)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", next)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(next, 0o600)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		l.Close()
		os.Remove(next)
		return nil, err
	}
	return &unixListener{Listener: l, remove: sync.OnceFunc(func() { os.Remove(path) })}, nil
}

// unixListener removes its path when it is closed.
type unixListener struct {
	net.Listener
	remove func()
}

func (l *unixListener) Close() error {
	l.remove()
	return l.Listener.Close()
}
