package rlm

import (
	v1 "github.com/recluse-dev/recluse/api/v1"
)

// pastCell is a block of code of an earlier program's turn, and how it ended.
type pastCell struct {
	v1.CellStarted
	end *v1.CellEnded // nil: nobody told
}

// takeCell records the beginning or the end of a block of the root.
func (p *past) takeCell(e *v1.RunEvent) error {
	cells := p.cells[e.Turn]
	if e.Kind == v1.KindCellStarted {
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
	end := &v1.CellEnded{}
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
func (n *node) notRunThen(c v1.CellStarted) *v1.CellEnded {
	if len(n.pastCells) == 0 || n.pastCells[0].CellStarted != c {
		n.pastCells = nil
		return notRun("it was not run before")
	}
	end := n.pastCells[0].end
	n.pastCells = n.pastCells[1:]
	if end == nil {
		return notRun("nobody knows how it ended")
	}
	if end.Ended == v1.EndedStart && end.StateKept {
		return end
	}
	return nil
}
