package main

type lintCmd struct {
	input
}

// Run prints the diagnostics of a compilation, and nothing else. They are its
// output, and so go to standard output, also those that are errors.
func (c *lintCmd) Run(e *env) error {
	out := *e
	out.stderr = e.stdout
	job, err := c.load(&out)
	if err != nil {
		return err
	}
	job.compile()
	found := len(job.diags) > 0
	if err := job.finish(&out, nil); err != nil {
		return err
	}
	if found {
		return errFindings
	}
	return nil
}
