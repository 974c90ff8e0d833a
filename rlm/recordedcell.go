package rlm

import (
	v1 "github.com/recluse-dev/recluse/api/v1"
)

// recordedCell is a cell or command of a recorded turn.
type recordedCell struct {
	v1.CellStarted
	end *v1.CellEnded // nil: its program died before the end was recorded
}

// applyCell records the start or the end of a cell of the root node.
func (p *runRecord) applyCell(e *v1.RunEvent) error {
	cells := p.cells[e.Turn]
	if e.Kind == v1.KindCellStarted {
		var c recordedCell
		if err := e.Decode(&c.CellStarted); err != nil {
			return err
		}
		p.cells[e.Turn], p.unfinished = append(cells, c), true
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

// recordedRefusal returns the recorded end of a cell that did not run in the recorded turn, for example because the
// gate refused it. The cell must not run now either. It returns nil for a cell that ran and runs again now. The gate
// does not judge such a cell a second time, because the approval of a person is valid only once.
//
// A cell that was not recorded did not run either: an earlier cell of the reply failed before the gate could judge it.
func (n *node) recordedRefusal(c v1.CellStarted) *v1.CellEnded {
	if len(n.recordedCells) == 0 || n.recordedCells[0].CellStarted != c {
		n.recordedCells = nil
		return notRun("the cell did not run before the run was resumed")
	}
	end := n.recordedCells[0].end
	n.recordedCells = n.recordedCells[1:]
	if end == nil {
		return notRun("it is unknown how the cell ended before the run was resumed")
	}
	if end.Ended == v1.EndedStart && end.StateKept {
		return end
	}
	return nil
}
