package rlm

import "github.com/recluse-dev/recluse/sandbox"

// pastCell is a block of code of an earlier program's turn, and how it ended.
type pastCell struct {
	CellStarted
	end *CellEnded // nil: nobody told
}

// takeCell records the beginning or the end of a block of the root.
func (p *past) takeCell(e *Event) error {
	cells := p.cells[e.Turn]
	if e.Kind == KindCellStarted {
		var c pastCell
		if err := e.Decode(&c.CellStarted); err != nil {
			return err
		}
		p.cells[e.Turn], p.dirty = append(cells, c), true
		return nil
	}
	if len(cells) == 0 {
		return nil
	}
	end := &CellEnded{}
	if err := e.Decode(end); err != nil {
		return err
	}
	cells[len(cells)-1].end = end
	return nil
}

// notRunThen is how a block ended that did not run when the run first came to it, so that it does not run now either; nil: it ran, and does again. Code that
// the gate refused is such a block. It is not judged a second time: what a person allowed was allowed once.
//
// A block that is not known from then is one, too: another block failed before it could be judged.
func (n *node) notRunThen(c CellStarted) *CellEnded {
	if len(n.pastCells) == 0 || n.pastCells[0].CellStarted != c {
		n.pastCells = nil
		return notRun("it was not run before")
	}
	end := n.pastCells[0].end
	n.pastCells = n.pastCells[1:]
	if end == nil {
		return notRun("nobody knows how it ended")
	}
	if end.Ended == sandbox.EndedStart && end.StateKept {
		return end
	}
	return nil
}
