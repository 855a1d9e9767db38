// The other processes of this gateway, as a backend that keeps files sees them.
import type { Clock } from '../../core/clock.ts'
import type { FolderCompany } from '../../core/disk/company.ts'
import { createWroteNotes, type Wrote } from '../../team/crew-member.ts'
import { isWorker, type Team } from '../../team/team.ts'

export function companyOf(team: Team, clock: Clock): FolderCompany {
  if (isWorker(team)) {
    const note = createWroteNotes(team.tell, clock)
    return { isOwner: false, wrote: (folder, shard, bytes) => note({ folder, shard, bytes }), onWrote: () => () => {} }
  }
  const heard = new Map<string, Set<(shard: string, bytes: number) => void>>()
  team.on('wrote', (said) => {
    for (const { folder, shard, bytes } of said as readonly Wrote[])
      for (const listen of heard.get(folder) ?? []) listen(shard, bytes)
  })
  return {
    isOwner: true,
    wrote() {},
    onWrote(folder, listen) {
      const all = heard.get(folder) ?? new Set()
      heard.set(folder, all.add(listen))
      return () => void all.delete(listen)
    },
  }
}
