const cpu=()=>{const u=process.cpuUsage();return (u.user+u.system)/1000}
let b=cpu(); const t=performance.now()
for (const m of process.argv.slice(2)) { const c=cpu(); await import(m); console.log(m,(cpu()-c).toFixed(0)) }
console.log('total',(cpu()-b).toFixed(0),'base',b.toFixed(0),'wall',(performance.now()-t).toFixed(0), process.memoryUsage().rss>>20)
