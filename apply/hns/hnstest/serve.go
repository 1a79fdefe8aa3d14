package hnstest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// Serve receives calls from the DLLs of e2e/windows until the listener is closed. Each call is a
// name, an id, a handle, a text and a method. Each reply is a result, a handle and a text. Numbers
// are little-endian, and texts are prefixed by their length.
func (s *Service) Serve(l net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer c.Close()
			s.serve(c)
		})
	}
}

const longest = 16 << 20

func (s *Service) serve(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		var call Call
		err := readTexts(r, &call.Name, &call.ID)
		if err == nil {
			err = binary.Read(r, binary.LittleEndian, &call.Handle)
		}
		if err == nil {
			err = readTexts(r, &call.Text, &call.Method)
		}
		if err != nil {
			return
		}

		result, h, text := s.Call(call)
		answer := binary.LittleEndian.AppendUint32(nil, result)
		answer = binary.LittleEndian.AppendUint64(answer, uint64(h))
		answer = binary.LittleEndian.AppendUint32(answer, uint32(len(text)))
		if _, err := c.Write(append(answer, text...)); err != nil {
			return
		}
	}
}

func readTexts(r io.Reader, into ...*string) error {
	for _, t := range into {
		var n int32
		if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
			return err
		}
		if n < 0 || n > longest {
			return fmt.Errorf("a text of %d bytes", n)
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		*t = string(b)
	}
	return nil
}
