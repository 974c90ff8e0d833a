// Shell commands of opencode run in the sandbox of this project. recluse integrate opencode --undo removes this file.

import { spawnSync } from "node:child_process"

const program = $PROGRAM
const args = $ARGS

export const Recluse = async ({ directory }) => ({
  "tool.execute.before": async (input, output) => {
    if (input.tool !== "bash") return
    const call = { hook_event_name: "tool.execute.before", tool_name: input.tool, cwd: directory, tool_input: output.args }
    const answer = spawnSync(program, args, { input: JSON.stringify(call), encoding: "utf8", maxBuffer: 256 * 1024 * 1024 })
    if (answer.error) throw new Error("recluse: the hook did not run: " + answer.error.message)
    if (answer.status !== 0) throw new Error(answer.stderr || "recluse: the hook ended with status " + answer.status)
    const { args: changed } = JSON.parse(answer.stdout)
    if (changed) Object.assign(output.args, changed)
  },
})
