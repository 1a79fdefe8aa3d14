package disk

import (
	"os"
	"path/filepath"
	"sync"
)

// LogFile is a log of bounded size.
type LogFile struct {
	path string
	max  int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLogFile opens or creates a log with at most max bytes. One old file is kept.
func OpenLogFile(path string, max int64) (*LogFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	l := &LogFile{path: path, max: max}
	return l, l.open()
}

func (l *LogFile) open() (err error) {
	if l.file, err = os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	info, err := l.file.Stat()
	if err == nil {
		l.size = info.Size()
	}
	return err
}

// Write appends a message to the log. If the file is full, it starts another one first.
func (l *LogFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(b)) > l.max {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(b)
	l.size += int64(n)
	return n, err
}

// rotate starts another file. If the current one cannot be moved, because another process has it
// open, it is kept: a log that is too long is better than none.
func (l *LogFile) rotate() error {
	l.file.Close()
	movedErr := os.Rename(l.path, l.path+".old")
	if err := l.open(); err != nil {
		return err
	}
	if movedErr != nil {
		l.size = 0 // try again after as much output
	}
	return nil
}

// Close closes the file.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
