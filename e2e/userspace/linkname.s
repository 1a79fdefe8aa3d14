// So that go:linkname functions may lack a body.
