// The other processes of this gateway, as a backend that keeps files sees them.
import type { Clock } from '../../core/clock.ts'
import type { FolderCompany, WroteListener } from '../../core/disk/company.ts'
import { createWroteNotes, type Wrote } from '../../team/crew-member.ts'
import { isWorker, type Team } from '../../team/team.ts'

export function companyOf(team: Team, clock: Clock): FolderCompany {
  if (isWorker(team)) {
    const note = createWroteNotes(team.tell, clock)
    return { isOwner: false, wrote: (folder, shard, bytes) => note({ folder, shard, bytes }), onWrote: () => () => {} }
  }
  const heard = new Map<string, Set<WroteListener>>()
  team.on('wrote', (said) => {
    for (const { folder, shard, bytes } of said as readonly Wrote[])
      for (const one of heard.get(folder) ?? []) one.wrote(shard, bytes)
  })
  team.on('ended', () => {
    for (const all of heard.values()) for (const one of all) one.lost()
  })
  return {
    isOwner: true,
    wrote() {},
    onWrote(folder, listener) {
      const all = heard.get(folder) ?? new Set()
      heard.set(folder, all.add(listener))
      return () => void all.delete(listener)
    },
  }
}
