// Scm acts on a service like sc.exe, and prints the result. Wine's own sc.exe prints no states
// and codes.
//
//	scm create NAME COMMAND... | start NAME | stop NAME | ended NAME | query NAME | delete NAME
package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "scm:", err)
		os.Exit(1)
	}
}

func run(verb, name string, command []string) error {
	m, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer m.Disconnect()
	if verb == "create" {
		s, err := m.CreateService(name, command[0], mgr.Config{StartType: mgr.StartManual}, command[1:]...)
		if err != nil {
			return err
		}
		return s.Close()
	}
	s, err := m.OpenService(name)
	if err != nil {
		return err
	}
	defer s.Close()
	switch verb {
	case "start":
		return s.Start()
	case "stop":
		if _, err := s.Control(svc.Stop); err != nil {
			return err
		}
		return query(s, func(state svc.State) bool { return state == svc.Stopped })
	case "ended":
		return query(s, func(state svc.State) bool { return state == svc.Stopped })
	case "query":
		return query(s, func(svc.State) bool { return true })
	case "delete":
		return s.Delete()
	}
	return fmt.Errorf("no such verb: %s", verb)
}

// query waits for a state and prints it.
func query(s *mgr.Service, is func(svc.State) bool) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		q, err := s.Query()
		if err != nil {
			return err
		}
		if !is(q.State) {
			if time.Now().After(end) {
				return fmt.Errorf("state %d for a minute", q.State)
			}
			continue
		}
		class := uint32(0)
		if q.ProcessId != 0 {
			p, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, q.ProcessId)
			if err != nil {
				return err
			}
			defer windows.CloseHandle(p)
			if class, err = windows.GetPriorityClass(p); err != nil {
				return err
			}
		}
		fmt.Printf("state %d, accepts %d, code %d, of its own %d, priority %#x\n", q.State, q.Accepts, q.Win32ExitCode, q.ServiceSpecificExitCode, class)
		return nil
	}
}
